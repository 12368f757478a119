"""Progress bars are shown where people look, and nowhere else."""

import pytest

from hsbi.training import no_progress, show_progress


@pytest.fixture
def bars(monkeypatch):
    """Record what a stand-in for tqdm is told."""
    made = []

    class Bar:
        def __init__(self, *, total, desc, leave):
            self.total, self.desc, self.n, self.notes, self.closed = total, desc, 0, [], False
            made.append(self)

        def set_postfix_str(self, note, refresh):
            self.notes.append(note)

        def update(self, number):
            self.n += number

        def close(self):
            self.closed = True

    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    for name in ("CI", "HSBI_NO_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    return made


def run(bar):
    bar.update(30, "loss 1.000")
    bar.update(50)
    bar.close()


def test_a_bar_counts_to_what_is_done(bars):
    run(show_progress("stage", 80))
    (bar,) = bars
    assert (bar.desc, bar.total, bar.n, bar.closed) == ("stage", 80, 50, True)
    assert bar.notes[0] == "loss 1.000"


@pytest.mark.parametrize("name", ["CI", "HSBI_NO_PROGRESS"])
def test_the_environment_silences_bars(bars, monkeypatch, capsys, name):
    monkeypatch.setenv(name, "1")
    run(show_progress("stage", 80))
    assert not bars
    assert capsys.readouterr() == ("", "")


def test_no_progress_shows_nothing(bars, capsys):
    run(no_progress("stage", 80))
    assert not bars
    assert capsys.readouterr() == ("", "")
