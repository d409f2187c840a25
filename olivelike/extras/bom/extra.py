"""Declaration of bills of materials: one command."""

from olivelike._extras import Command

COMMANDS = {
    "bom": Command(
        "olivelike.extras.bom.bom_command:bom", "olivelike bom models/painter", group="Make", after="package"
    )
}
