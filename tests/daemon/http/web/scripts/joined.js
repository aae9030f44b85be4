// What the page makes of curves that it read and of what was reported since.
async (cases) => {
  const { extended, smoothed } = await import('/page/js/views.js');
  return cases.map(({ before, parts, weight }) => {
    for (const { records, of } of parts) extended(before, records, of);
    return { curves: before, smoothed: smoothed(before.steps.loss ?? [], weight) };
  });
}
