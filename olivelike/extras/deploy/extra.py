"""Declaration of deployment: packages by what layouts call them, commands that write them of outputs, Triton's loop."""

from olivelike._extras import Command

PACKAGES = {
    "triton": "olivelike.extras.deploy.triton_files:TritonRepository",
    "ortpackage": "olivelike.extras.deploy.ort_package:OrtPackage",
    "web": "olivelike.extras.deploy.web_files:WebFolder",
}
COMMANDS = {
    "export-web": Command(
        "olivelike.extras.deploy.deploy_commands:export_page",
        "olivelike export-web models/painter_web site",
        group="Make",
        after="serve",
    ),
    "package": Command(
        "olivelike.extras.deploy.deploy_commands:package",
        "olivelike package models/painter models/painter_cuda -o models/painter.ortpackage",
        group="Make",
        after="export-web",
    ),
}
SERVED = {"triton": "olivelike.extras.deploy.triton_loop:TritonModel"}
