// All pictures that the form has: as they are kept for a reload and for Undo, put there by a recipe, and looked for at the server.

import { controlStates, fillControls, forgetControls, netLike } from "./controls.js";
import { stillThere } from "./given.js";
import { fillInitial, forgetInitial, initialState } from "./initial.js";
import { t } from "./language.js";
import { PICTURE_LISTS } from "./picture_lists.js";

/** What is kept of all of them. */
export const formPictures = () => ({ initial: initialState(), controls: controlStates(), lists: PICTURE_LISTS.map((list) => list.state()) });

/** Have those that were kept; kinds of which nothing was said stay. */
export async function fillPictures({ initial, controls, lists }) {
  if (controls) fillControls(controls);
  if (lists) for (const [place, list] of PICTURE_LISTS.entries()) list.fill(lists[place] ?? []);
  if (initial) await fillInitial(initial);
}

export const NO_PICTURES = { initial: {}, controls: [], lists: [] };

/** What is kept without pictures, for another time: the units of ControlNets. */
export const withoutPictures = ({ controls }) => ({ controls: controls.map(({ picture, ...rest }) => rest) });

/** Let go of those that the server has no more. */
export async function forgetGone() {
  const { initial, controls, lists } = formPictures();
  const ids = [initial, ...initial.steps, ...controls, ...lists.flat().map((picture) => ({ picture }))].map((one) => one.picture?.id ?? one.id).filter(Boolean);
  const there = await stillThere([...new Set(ids)]);
  const isGone = (id) => !there.has(id);
  forgetInitial(isGone);
  forgetControls(isGone);
  for (const list of PICTURE_LISTS) list.forget(isGone);
}

/** A file of a record that may be an upload. */
const idIn = (used) => (/^[0-9a-f]{64}$/.test(used?.hash ?? "") ? used.hash : null);

/** The pictures of a record as they are kept, where the server still has them; and what is missing, in words. */
export async function picturesOf({ init_image, mask, controls = [], ip_adapter_images = [], references = [] }) {
  const used = [init_image, mask, ...controls.map(({ image }) => image), ...ip_adapter_images, ...references];
  const there = await stillThere([...new Set(used.map(idIn).filter(Boolean))]);
  const missing = [];
  const taken = (file, name) => {
    const found = there.get(idIn(file));
    if (!found) missing.push(file ? t`it was made from ${name} (${file.name}), which you have to choose again` : t`it was made from ${name}, which you have to choose`);
    return found ? { ...found, name: file.name } : null;
  };
  const all = (files, name) => files.map((file) => taken(file, name)).filter(Boolean);
  const initial = { picture: init_image ? taken(init_image, t`an initial picture`) : null, steps: [] };
  const painted = mask && taken(mask, t`a mask`);
  if (painted && initial.picture) initial.steps.push({ kind: "image", id: painted.id, layers: ["mask"] });
  const units = controls.map(({ image, net, thresholds: [a = "", b = ""] = [], ...how }) => {
    const known = netLike(net);
    if (net && !known) missing.push(t`the ControlNet ${net} is not in this model`);
    return { ...how, a, b, enabled: true, ...(known ? { net: known } : {}), picture: taken(image, t`a picture that led`) };
  });
  const lists = { ip_adapter_images: all(ip_adapter_images, t`a picture that was a prompt`), references: all(references, t`a reference`) };
  return { pictures: { initial, controls: units, lists: PICTURE_LISTS.map(({ field }) => lists[field]) }, missing };
}
