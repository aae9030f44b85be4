// What can be used and has no name, as readers of screens would say it.
() => [...document.querySelectorAll('a, button, input, select, summary, [role=img]')]
  .filter((each) => each.checkVisibility() && !(each.innerText?.trim() || each.ariaLabel
    || each.labels?.[0]?.innerText.trim() || each.getAttribute('title')))
  .map((each) => each.outerHTML.slice(0, 200))
