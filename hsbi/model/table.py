"""Print a structure as a table."""

from hsbi.model.structure import Site, Structure

_HEADER = ("site", "level", "plates", "event", "distribution", "support", "parents")


def format_table(structure: Structure) -> str:
    """Lay a structure out as a table that fits a terminal, with a line each for what else was understood."""
    rows = [_HEADER, *(_row(structure, site) for site in structure.sites)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([_headline(structure), "", *lines, *_details(structure)])


def _headline(structure: Structure) -> str:
    plate = structure.site_plate
    sites = "1 site, no plate of sites" if plate is None else f"{plate.size} sites (plate {plate.name!r})"
    counts = [
        _count(len(structure.globals), "global"),
        _count(len(structure.locals), "local"),
        _count(len(structure.observations), "observation"),
    ]
    return f"{sites}: {', '.join(counts)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _row(structure: Structure, site: Site) -> tuple[str, ...]:
    plates = ", ".join(f"{name} {size}" for name, size in zip(site.plates, site.shape, strict=False))
    return (
        site.name,
        site.level,
        plates or "-",
        _shape(site.event_shape),
        site.distribution or "-",
        site.support or "-",
        ", ".join(site.parents) or "-",
    )


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "scalar"


def _details(structure: Structure) -> list[str]:
    """Give the lines below the table: unknowns, replicates, covariates, data, inputs, missing values, notes."""
    shared = sum(structure[name].num_coordinates for name in structure.globals)
    own = sum(structure[name].num_coordinates for name in structure.locals)
    per_site = f" + {own} per site x {structure.num_sites} sites = {shared + own * structure.num_sites}" if own else ""
    lines = [f"unknowns: {shared}{per_site}"]
    if structure.replicate_plates:
        names = ", ".join(f"{plate.name} ({plate.size})" for plate in structure.replicate_plates)
        lines.append(f"replicates: {names}")
    covariates = [f"{c.path} {c.shape}" for c in structure.covariates if c.data is None]
    if covariates:
        lines.append(f"covariates, one entry per site: {', '.join(covariates)}")
    data = [c.path if c.path == c.data else f"{c.path} (of {c.data})" for c in structure.covariates if c.data]
    if data:
        lines.append(f"data: {', '.join(data)}")
    for site in structure.sites:
        if site.inputs is not None:
            lines.append(f"inputs of {site.name}: {site.inputs}")
        if site.missing:
            total = 1
            for size in site.shape:
                total *= size
            lines.append(f"missing in {site.name}: {site.missing} of {total} values")
    lines.extend(f"note: {note}" for note in structure.notes)
    return ["", *lines]
