"""Declaration of deployment: packages by what layouts call them, what commands write of outputs, Triton's loop."""

PACKAGES = {
    "triton": "olivelike.extras.deploy.triton_files:TritonRepository",
    "ortpackage": "olivelike.extras.deploy.ort_package:OrtPackage",
    "web": "olivelike.extras.deploy.web_files:WebFolder",
}
WRITERS = {
    "package": "olivelike.extras.deploy.joined_package:package_outputs",
    "page": "olivelike.extras.deploy.web_page:export_web",
}
SERVED = {"triton": "olivelike.extras.deploy.triton_loop:TritonModel"}
