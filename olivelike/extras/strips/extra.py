"""Declaration of strips: a network's cut, and a run of it on strips of a picture."""

STRIPS = {
    "cut": "olivelike.extras.strips.run_in_strips:find_cut",
    "run": "olivelike.extras.strips.run_in_strips:run_in_strips",
}
