// The language of the page: a text is written in English, and looked up in a table; what that has not stays English.

import { LANGUAGE, LANGUAGES, WORDS } from "./words.js";

export { LANGUAGE, LANGUAGES };

/** Number under which the table has a text: that of its letters, which is shorter than the text. */
const numberOf = (text) => [...text].reduce((sum, letter) => (sum * 31 + letter.codePointAt()) & 0xffffff, 0).toString(16);

/**
 * A text in the page's language: t`Step ${1} of ${9}` is looked up as "Step {0} of {1}", t("Seed") as it is.
 *
 * What is no template of a module is given as a string.
 */
export function t(text, ...values) {
  if (typeof text === "string") return WORDS[numberOf(text)] ?? text;
  const key = text.reduce((sum, part, place) => `${sum}{${place - 1}}${part}`);
  return (WORDS[numberOf(key)] ?? key).replace(/\{(\d)\}/g, (_, place) => values[place]);
}

/** Dates are written as the browser has them in this language: a Briton's are no American's. */
export const locale = () => navigator.languages.find((one) => one.split("-")[0] === LANGUAGE.split("-")[0]) ?? LANGUAGE;

/** Keep another language, and show the page in it; "" is the browser's. */
export function setLanguage(code) {
  document.cookie = `olivelike_language=${code}; path=/; max-age=${code ? 31536000 : 0}; SameSite=Strict`;
  location.reload();
}

/** Whether the language is the browser's, and not one that was kept. */
export const followsBrowser = () => !/(?:^|; )olivelike_language=\w/.test(document.cookie);
