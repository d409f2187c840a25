// The theme that was kept, before the page is first painted: that waits for this file, so that it imports nothing.

document.documentElement.dataset.theme = localStorage.getItem("olivelike.theme") ?? "auto";
