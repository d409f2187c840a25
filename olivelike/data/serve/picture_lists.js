// Pictures that an order may have several of beside its words: a prompt for the IP-Adapter, references to work after.

import { $, button, make, on, onFiles, tellInput } from "./dom.js";
import { give, inWords, isGone, letGo, recalled } from "./given.js";
import { t } from "./language.js";
import { announce, problem } from "./notices.js";

/** A list in the fold `fold-NAME`: `field` is the order's, `told` what they are, in words. */
function pictureList(name, field, told) {
  let pictures = [];
  let most = 0;

  function show() {
    $(`${name}-pictures`).replaceChildren(...pictures.map((one, place) => make(
      "li", {}, make("img", { src: one.url, alt: `${place + 1}: ${one.name}`, on: { error: () => isGone(one).then((gone) => gone && remove(one)) } }),
      make("span", { className: "of-picture", "aria-hidden": "true" }, String(place + 1)),
      button("×", () => {
        remove(one);
        $(`${name}-file`).focus();
      }, { className: "icon quiet", "aria-label": t`Remove ${one.name}` }),
    )));
    $(`${name}-remove`).disabled = pictures.length === 0;
    $(`${name}-badge`).textContent = pictures.length ? String(pictures.length) : "";
  }

  /** Have these in place of those that are there. */
  function put(those) {
    for (const one of pictures) if (!those.includes(one)) letGo(one);
    pictures = those;
    show();
  }

  /** One that the server has no more can't be shown, and is left out. */
  function remove(one) {
    put(pictures.filter((other) => other !== one));
    tellInput($("form"));
  }

  async function add(files, how = (file) => give(file, file.name)) {
    problem($(`${name}-problem`), "");
    $(`fold-${name}`).open = true;
    try {
      for (const file of files) {
        if (pictures.length >= most) throw new Error(t`At most ${most} pictures are taken; ${file.name} and what follows is left out.`);
        const given = await how(file);
        put([...pictures, given]);
        announce(`${given.name}: ${told}.`);
      }
    } catch (error) {
      problem($(`${name}-problem`), error);
    }
    tellInput($("form"));
  }

  return {
    field,
    /** Let a model have so many; where it takes none, there is nothing to choose. */
    allow(count) {
      // What only some models take is open with those.
      if (count && !most && !$(`${name}-none`)) $(`fold-${name}`).open = true;
      most = count;
      const none = $(`${name}-none`);
      $(`fold-${name}`).hidden = !most && !none;
      if (none) none.hidden = most > 0;
      for (const part of $(`fold-${name}`).querySelectorAll(".drop, .row, .grid")) part.hidden = !most;
    },
    add,
    allowed: () => most > 0,
    /** What the order has of this. */
    fields: () => (most && pictures.length ? { [field]: pictures.slice(0, most).map(({ id }) => id) } : {}),
    state: () => pictures.map(inWords),
    fill: (kept) => put(kept.map(recalled)),
    forget: (isGone) => put(pictures.filter(({ id }) => !isGone(id))),
    start() {
      onFiles(`${name}-file`, (files) => add(files));
      on(`${name}-remove`, "click", () => {
        put([]);
        tellInput($("form"));
      });
    },
  };
}

export const imagePrompts = pictureList("image-prompt", "ip_adapter_images", t`a prompt too`);
export const references = pictureList("references", "references", t`a picture to work after`);
export const PICTURE_LISTS = [imagePrompts, references];
