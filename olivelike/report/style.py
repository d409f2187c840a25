"""How a report looks: system fonts, light and dark, narrow screens, paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #1b1f24; --quiet: #57606a; --line: #d0d7de; --panel: #f6f8fa; --link: #0a5dc2;
  --hit: #d3f2d3; --executed: #ffe2b8; --failed: #ffd0d0; --skipped: #e4e7eb; --mark: #c2410c; --bar: #e8a33d; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14181d; --ink: #e6eaee; --quiet: #a3adb8; --line: #39424c; --panel: #1d232a; --link: #7ab7ff;
  --hit: #1f4d2b; --executed: #5c3c0e; --failed: #6b2020; --skipped: #363d46; --mark: #ffa36b; --bar: #b7791f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.25rem clamp(0.9rem, 4vw, 2.5rem) 3rem; max-width: 78rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0.2rem 0 0.4rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 0.7rem; padding-bottom: 0.3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0.9rem 0 0.4rem; }
.lead { font-size: 1.08rem; margin: 0 0 1rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.3rem 1.1rem; margin: 1.1rem 0 0; }
nav a { padding: 0.25rem 0; }
a { color: var(--link); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); gap: 0.5rem 1.6rem;
  margin: 0.6rem 0; }
dt { color: var(--quiet); font-size: 0.82rem; }
dd { margin: 0; }
.badge { display: inline-block; vertical-align: 0.18em; padding: 0.05rem 0.6rem; border-radius: 1rem;
  font-size: 0.85rem; font-weight: 600; background: var(--skipped); }
.badge.ok { background: var(--hit); }
.badge.failed, .badge.interrupted { background: var(--failed); }
.key { display: inline-block; padding: 0 0.5rem; border-radius: 0.3rem; background: var(--skipped); }
.key.hit { background: var(--hit); }
.key.executed { background: var(--executed); }
.key.failed { background: var(--failed); }
.scroll { overflow-x: auto; margin: 0.8rem 0; }
.scroll:focus-visible, summary:focus-visible, a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; overflow-wrap: normal; }
caption { text-align: left; color: var(--quiet); padding: 0.2rem 0 0.4rem; }
th, td { text-align: left; vertical-align: top; padding: 0.32rem 0.9rem 0.32rem 0;
  border-bottom: 1px solid var(--line); }
thead th { color: var(--quiet); font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 500; min-width: 12.5rem; overflow-wrap: anywhere; }
tbody th, td { max-width: 34rem; }
td:not(.number):last-child { min-width: 11rem; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.measure { display: block; }
.bar { display: block; margin-left: auto; height: 0.22rem; min-width: 1px; border-radius: 0.1rem;
  background: var(--bar); }
figure { margin: 0.8rem 0; }
figcaption { color: var(--quiet); font-size: 0.88rem; display: flex; flex-wrap: wrap; gap: 0.5rem; }
figcaption .key { color: var(--ink); }
.graph { border: 1px solid var(--line); border-radius: 0.5rem; background: var(--panel); }
.graph svg { display: block; max-width: 100%; height: auto; }
.graph rect { fill: var(--skipped); stroke: var(--quiet); }
.graph .hit rect { fill: var(--hit); }
.graph .executed rect { fill: var(--executed); }
.graph .failed rect { fill: var(--failed); }
.graph text { fill: var(--ink); }
.graph line { stroke: var(--quiet); }
.graph marker path { fill: var(--quiet); }
details { border: 1px solid var(--line); border-radius: 0.5rem; margin: 0.6rem 0; padding: 0 0.9rem; }
summary { cursor: pointer; padding: 0.55rem 0; font-weight: 500; }
article { margin: 0.8rem 0; }
.error { border-left: 4px solid var(--mark); padding: 0.2rem 0 0.2rem 1rem; }
pre { white-space: pre-wrap; background: var(--panel); border-radius: 0.4rem; padding: 0.8rem; margin: 0.4rem 0;
  font: 0.88rem/1.5 ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 12rem), 20rem)); gap: 1rem; }
.pictures figure { margin: 0; }
.pictures img { width: 100%; height: auto; display: block; border-radius: 0.4rem; background: var(--panel); }
footer { margin-top: 3rem; color: var(--quiet); font-size: 0.85rem; }
@media (max-width: 34rem) { h1 { font-size: 1.4rem; } dl { gap: 0.4rem; } }
@media print {
  :root { color-scheme: light;
    --paper: #ffffff; --ink: #000000; --quiet: #444444; --line: #bbbbbb; --panel: #ffffff; --link: #000000;
    --hit: #d3f2d3; --executed: #ffe2b8; --failed: #ffd0d0; --skipped: #e4e7eb; --mark: #c2410c; --bar: #888888; }
  body { max-width: none; padding: 0; font-size: 9.5pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  nav { display: none; }
  .scroll { overflow: visible; }
  .graph svg { min-width: 0 !important; }
  table { font-size: 8.5pt; }
  h2, h3, caption, summary { break-after: avoid; }
  tr, article, figure { break-inside: avoid; }
  details::details-content { content-visibility: visible; display: block; }
  tbody th, td { max-width: none; min-width: 0; overflow-wrap: anywhere; }
}
"""
"""Colours of text on its backgrounds have a contrast of 4.5 and more, light and dark."""
