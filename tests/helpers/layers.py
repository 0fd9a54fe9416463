"""Parameters of dense layers in the form of the built-in networks."""


def group_of(layers, linear=True):
    """Return the parameter group of a torso with these layers; if `linear`, the last layer is a head."""
    hidden, head = (layers[:-1], {"head": {"Linear_0": layers[-1]}}) if linear else (layers, {})
    return {"torso": {f"Dense_{i}": layer for i, layer in enumerate(hidden)}, **head}
