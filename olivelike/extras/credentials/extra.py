"""Declaration of Content Credentials: what signs pictures, and what checks them."""

CREDENTIALS = {
    "signer": "olivelike.extras.credentials.picture_signer:open_signer",
    "check": "olivelike.extras.credentials.picture_check:check_picture",
}
