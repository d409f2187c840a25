// The words of the document itself, in the page's language before it is first painted.

import { t } from "./language.js";
import { LANGUAGE } from "./words.js";

document.documentElement.lang = LANGUAGE;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  const text = node.data.trim();
  const found = t(text.replace(/\s+/g, " "));
  if (text && !node.parentElement.closest("[translate=no], code")) node.data = node.data.replace(text, () => found);
}
for (const name of ["aria-label", "title", "placeholder", "alt"]) {
  for (const element of document.querySelectorAll(`[${name}]`)) element.setAttribute(name, t(element.getAttribute(name)));
}
