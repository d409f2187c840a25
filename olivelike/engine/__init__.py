"""The engine: what every front end calls to plan and run workflows.

Options and what is prepared are values in `prepared`, plans in `preparation`, runs in `run`, runs of one checkpoint
without a workflow file in `convert_request`. The package imports nothing, so that whoever needs one small module of it
gets no planner.
"""
