// What can be done with a picture, as buttons: below the one on the stage, and in the large view.

import { $, button, make, tellInput } from "./dom.js";
import { mayLead, sendToControl } from "./controls.js";
import { readGroup, setField } from "./form.js";
import { fillPictures, formPictures } from "./form_pictures.js";
import { fromGallery } from "./given.js";
import { openCanvas, setInitial } from "./initial.js";
import { submit } from "./jobs.js";
import { t } from "./language.js";
import { confirmed, notice } from "./notices.js";
import { references } from "./picture_lists.js";
import { applyRecipe, orderOf } from "./recipe.js";
import { erase, like } from "./selection.js";
import { sendToUpscale } from "./upscale.js";

const VARIED = 0.2;
const ENLARGED = 2;

async function sendToInitial(picture) {
  const given = await fromGallery(picture, t`this picture`);
  location.hash = "#paint";
  await setInitial(given, true);
  $("fold-init").scrollIntoView({ block: "nearest" });
}

async function toCanvas(picture, tool) {
  const [{ initial, lists }, sides] = [formPictures(), ["width", "height"].map((id) => [id, $(id).value])];
  await sendToInitial(picture);
  // The button waits for the picture, not for what is painted over it.
  openCanvas(tool).then((used) => used || takeBack({ initial, lists }, sides)).catch((error) => notice(error.message));
}

/** Nothing was painted, so the picture was sent for nothing: what was there before is there again. */
async function takeBack(before, sides) {
  await fillPictures(before);
  for (const [id, length] of sides) setField(id, length);
  tellInput($("form"));
}

async function refer(picture) {
  location.hash = "#paint";
  await references.add([picture], () => fromGallery(picture, `picture ${picture.seed ?? ""}`.trim()));
}

/** Draw a picture again with some fields changed; the form stays as it is. */
async function again(picture, changes) {
  const order = { ...(await orderOf(picture)), ...changes };
  location.hash = "#paint";
  await submit(order, true);
}

async function copyText({ parameters }) {
  try {
    await navigator.clipboard.writeText(parameters);
    notice(t`Copied.`);
  } catch {
    throw new Error(t`The browser allows no copying here; take the recipe of the large view.`);
  }
}

async function removePicture(picture) {
  if (!(await confirmed(t`Delete this picture? Its file is gone for good.`, t`Delete`))) return;
  await erase(picture);
  notice(t`Picture deleted.`);
}

const made = ({ record }) => Boolean(record);
const fromPrompt = ({ record }) => Boolean(record) && !record.init_image && !record.hires;

/** `stays` leaves the large view open, `large` is there alone; `fits` tells whether there is such a button for a picture. */
const ACTIONS = [
  { name: "img2img", label: t`Send to img2img`, hint: t`Start from this picture`, work: sendToInitial },
  { name: "inpaint", label: t`Send to inpaint`, hint: t`Paint a mask over this picture`, work: (picture) => toCanvas(picture, "mask") },
  { name: "outpaint", label: t`Outpaint`, hint: t`Drag its frame outwards`, work: (picture) => toCanvas(picture, "frame") },
  { name: "refer", label: t`Use as a reference`, hint: t`Work after this picture`, fits: () => references.allowed(), work: refer },
  { name: "control", label: t`Send to ControlNet`, hint: t`Let this picture lead`, fits: mayLead, work: sendToControl },
  { name: "upscale", label: t`Upscale`, hint: t`Enlarge it, by a network or without one`, work: (picture) => sendToUpscale(picture) },
  { name: "vary", label: t`Vary`, hint: t`Draw one like it: a share of ${VARIED} of another seed’s noise`, fits: made, work: (picture) => again(picture, { variation_strength: VARIED, variation_seed: -1 }) },
  { name: "hires", label: t`Hires fix`, hint: t`Enlarge this one and draw it again, as the fold Hires fix says, or by 2`, fits: fromPrompt, work: (picture) => again(picture, { hires: ENLARGED, ...readGroup("hires") }) },
  { name: "retry", label: t`Draw again`, hint: t`With another seed, and up to three more where it is flagged again`, fits: (picture) => picture.flagged && made(picture), work: (picture) => again(picture, { seed: -1, retry_unsafe: 3 }) },
  { name: "seed", label: t`Reuse seed`, hint: t`Put its seed into the form`, fits: ({ seed }) => seed !== null && seed !== undefined, work: (picture) => reuseSeed(picture) },
  { name: "use", label: t`Reuse all`, hint: t`Put its whole recipe into the form`, fits: made, work: (picture) => applyRecipe(picture.record) },
  { name: "copy", label: t`Copy as text`, hint: t`Its recipe as A1111 writes it`, stays: true, large: true, fits: ({ parameters }) => Boolean(parameters), work: copyText },
  { name: "like", label: t`Favourite`, hint: t`Keep it among the favourites (F in the large view)`, stays: true, pressed: ({ favourite }) => Boolean(favourite), work: (picture) => like(picture, !picture.favourite) },
  { name: "delete", label: t`Delete`, hint: t`Delete its file`, stays: true, danger: true, work: removePicture },
];

async function reuseSeed({ seed }) {
  location.hash = "#paint";
  setField("seed", seed);
  notice(t`Seed ${seed} is in the form.`);
}

async function run({ name, pressed, work }, picture, place) {
  const shown = $(`${place}-${name}`);
  // A picture may be under way for a while.
  shown.setAttribute("aria-busy", "true");
  await work(picture).finally(() => shown.removeAttribute("aria-busy"));
  if (pressed) $(`${place}-${name}`)?.setAttribute("aria-pressed", String(pressed(picture)));
}

/** Put the buttons for a picture into `place`, whose id begins theirs; `before(action)` is called first, `failed(error)` hears of errors. */
export function showActions(place, picture, { before = () => {}, failed = (error) => notice(error.message) } = {}) {
  const save = picture.given ? "" : make("a", { id: `${place}-save`, className: "button", href: picture.url, download: "", title: t`Save the file` }, t`Save`);
  const fitting = ACTIONS.filter(({ name, large, fits = () => true }) => fits(picture) && !(large && place !== "viewer") && !(picture.given && ["upscale", "like", "delete"].includes(name)) && !(picture.flagged && ["img2img", "inpaint", "outpaint", "refer", "control", "upscale", "vary", "hires"].includes(name)));
  $(`${place}-actions`).replaceChildren(save, ...fitting.map((action) => button(action.label, () => {
    before(action);
    run(action, picture, place).catch(failed);
  }, { ...(action.pressed ? { "aria-pressed": String(action.pressed(picture)) } : {}), id: `${place}-${action.name}`, title: action.hint, className: action.danger ? "danger" : "" })));
}
