// A picture that leads: which one, by which network of the model, how strongly and for how long.

import { $, make, newest } from "./dom.js";
import { fitSize, hasPicture, upload } from "./initial.js";
import { t } from "./language.js";
import { announce, problem } from "./notices.js";

let picture = null;
let nets = [];
const choosing = newest();

/** Show what a model has; without any there is nothing to choose. */
export function takeControlNets(names = []) {
  const chosen = $("control-net").value;
  nets = names;
  $("control-none").hidden = nets.length > 0;
  for (const part of $("fold-control").querySelectorAll(".drop, .row, .grid")) part.hidden = nets.length === 0;
  $("control-net").replaceChildren(...nets.map((name) => make("option", { value: name }, name)));
  if (nets.includes(chosen)) $("control-net").value = chosen;
}

/** What the order has of this. */
export function controlFields() {
  if (!picture || nets.length === 0) return {};
  const control = {
    image: picture.id, net: $("control-net").value, strength: Number($("control-strength").value),
    start: Number($("control-start").value), end: Number($("control-end").value),
    preprocessor: $("control-preprocessor").value,
  };
  return { controls: [control] };
}

async function choose(file) {
  problem($("control-problem"), "");
  const isNewest = choosing();
  try {
    const { id, width, height } = await upload(file);
    if (!isNewest()) return;
    forgetControl();
    picture = { id, url: URL.createObjectURL(file) };
    $("control-picture").src = picture.url;
    if (!hasPicture()) fitSize(width, height);
    announce(t`${file.name}, ${width} by ${height} pixels, leads.`);
  } catch (error) {
    problem($("control-problem"), error);
  }
  show();
}

/** Let go of an upload that the server has no more. */
export function forgetControl() {
  if (picture) URL.revokeObjectURL(picture.url);
  picture = null;
  $("control-file").value = "";
  show();
}

function show() {
  $("control-picture").hidden = !picture;
  $("control-remove").disabled = !picture;
  $("control-badge").textContent = picture ? t`on` : "";
}

export function startControls() {
  $("control-file").addEventListener("change", () => {
    const [file] = $("control-file").files;
    if (file) choose(file);
  });
  $("control-remove").addEventListener("click", forgetControl);
}
