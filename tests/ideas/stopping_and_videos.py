"""A run that ends once it is good enough, and films itself on the way."""

import purerl


def run(cfg, directory):
    options = {"eval_every": 1, "eval_episodes": 16, "render_every": 1}
    result = purerl.fit(cfg, directory=directory, stop_when=purerl.at_return(15), **options)
    purerl.render(result.run.train, result.state, f"{directory}/agent.gif")
    return result
