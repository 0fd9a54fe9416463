"""A run that stops at a mean return of 15, and renders episodes during and after training."""

import purerl


def run(cfg, directory):
    options = {"eval_every": 1, "eval_episodes": 16, "render_every": 1}
    result = purerl.fit(cfg, directory=directory, stop_when=purerl.at_return(15), **options)
    purerl.render(result.run.train, result.state, f"{directory}/agent.gif")
    return result
