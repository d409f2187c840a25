// Pictures that an order may have several of beside its words: a prompt for the IP-Adapter, references to work after.

import { $, button, make, onFiles, tellInput } from "./dom.js";
import { give, inWords, isGone, letGo, recalled } from "./given.js";
import { t } from "./language.js";
import { announce, problem } from "./notices.js";

/** A list in `fold-NAME`: `field` is the order's, `told` what they are, in words; `badges` count them; `changed` hears that it is another one. */
export function pictureList(name, field, told, { opens, most = 0, badges = [`${name}-badge`], changed = () => tellInput($("form")) } = {}) {
  let pictures = [];

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
    for (const badge of badges) $(badge).textContent = pictures.length ? String(pictures.length) : "";
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
    changed();
  }

  async function add(files, how = (file) => give(file, file.name)) {
    problem($(`${name}-problem`), "");
    $(`fold-${name}`).open = true;
    const refused = [];
    let status;
    for (const file of files) {
      if (pictures.length >= most) {
        refused.push(t`At most ${most} pictures are taken; ${file.name} and what follows is left out.`);
        break;
      }
      // One that can't be had keeps none of the others away.
      try {
        const given = await how(file);
        put([...pictures, given]);
        announce(`${given.name}: ${told}.`);
      } catch (error) {
        status = error.status;
        refused.push(error.message);
      }
    }
    problem($(`${name}-problem`), { message: refused.join("\n"), status });
    changed();
  }

  return {
    field,
    /** Let a model have so many; where it takes none, there is nothing to choose. */
    allow(count) {
      // What only some models take is open with those.
      if (count && !most && opens) $(`fold-${name}`).open = true;
      most = count;
      const none = $(`${name}-none`);
      $(`fold-${name}`).hidden = !most && !none;
      if (none) none.hidden = most > 0;
      for (const part of $(`fold-${name}`).querySelectorAll(".drop, .row, .grid")) part.hidden = !most;
    },
    add,
    allowed: () => most > 0,
    all: () => pictures,
    /** What the order has of this. */
    fields: () => (most && pictures.length ? { [field]: pictures.slice(0, most).map(({ id }) => id) } : {}),
    state: () => pictures.map(inWords),
    fill: (kept) => put(kept.map(recalled)),
    forget: (isGone) => put(pictures.filter(({ id }) => !isGone(id))),
    /** Make its parts around the words that stand in its fold. */
    start(take = add) {
      const words = $(`fold-${name}`).querySelector(":scope > p:not(.hint)");
      const removed = () => {
        put([]);
        changed();
      };
      const zone = make("div", { className: "drop" }, make("ul", { id: `${name}-pictures`, className: "plain pictures", "aria-label": told }));
      words.replaceWith(
        zone,
        make("div", { className: "row" },
          make("label", { className: "button" }, `${t`Choose pictures…`} `, make("input", { type: "file", id: `${name}-file`, className: "unseen", multiple: true })),
          button(t`Remove all`, removed, { id: `${name}-remove`, disabled: true })),
        make("p", { className: "problem", id: `${name}-problem`, role: "alert", hidden: true }),
      );
      zone.append(words);
      onFiles(`${name}-file`, (files) => take(files));
    },
  };
}

export const imagePrompts = pictureList("image-prompt", "ip_adapter_images", t`a prompt too`);
export const references = pictureList("references", "references", t`a picture to work after`, { opens: true });
/** Initial pictures of a batch. */
export const batch = pictureList("batch", "init_images", t`an initial picture`, { most: 100, badges: ["batch-badge", "init-batch-badge"] });
export const PICTURE_LISTS = [imagePrompts, references, batch];
