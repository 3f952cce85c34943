from __future__ import annotations

import numpy as np
import pytest
from spectrum_results import P, make_document, make_task

from clcurv.report.density import WIDTH, Axis, counts, smoothed
from clcurv.report.spectrum_document import QuadratureInfo


def spectrum(nodes, weights, *more, **changes):
    """A spectrum with one quadrature per (nodes, weights)."""
    quadrature = [QuadratureInfo(nodes=n, weights=w) for n, w in ((nodes, weights), *more)]
    base = make_document(tasks=[make_task(1)]).tasks[0].spectrum
    update = {"quadrature": tuple(quadrature), "lambda_max": max(nodes), "lambda_min": min(nodes)}
    return base.model_copy(update={**update, **changes})


def test_the_axis_is_linear_near_zero_and_logarithmic_beyond():
    axis = Axis.over([spectrum((-2.0, 0.0, 100.0), (0.1, 0.8, 0.1))])
    assert (axis.low, axis.high, axis.scale) == (-2.0, 100.0, pytest.approx(0.01))
    values = np.array([-2.0, 0.0, 1e-3, 10.0, 100.0])
    assert axis.value(axis.position(values)) == pytest.approx(values)
    assert axis.position(1e-3) == pytest.approx(0.1, rel=1e-2)
    assert axis.position(100.0) - axis.position(10.0) == pytest.approx(np.log(10), rel=1e-5)
    assert Axis.over([spectrum((0.0,), (1.0,))]) is None


def test_one_axis_holds_all_tasks():
    axis = Axis.over([spectrum((0.0, 1.0), (0.5, 0.5)), spectrum((-3.0, 0.2), (0.5, 0.5))])
    assert (axis.low, axis.high) == (-3.0, 1.0)


def test_counts_are_weights_times_parameters_averaged_over_probes():
    one = spectrum((0.0, 10.0), (0.9, 0.1), ((0.0, 10.0), (0.8, 0.2)))
    found = counts(one, Axis.over([one]), 5)
    assert sum(found) == pytest.approx(P)
    assert found[-1] == pytest.approx(0.15 * P)
    assert found[0] == pytest.approx(0.85 * P)


def test_nodes_at_the_ends_are_counted():
    one = spectrum((-1.0, 1.0), (0.25, 0.75))
    assert counts(one, Axis.over([one]), 4) == pytest.approx([250.0, 0.0, 0.0, 750.0])


def test_the_smoothed_density_holds_every_eigenvalue_and_has_the_stated_width():
    one = spectrum((-5.0, 0.0, 10.0), (0.2, 0.5, 0.3))
    axis = Axis.over([one])
    u = axis.grid(20_000, margin=1.0)
    density = smoothed(one, axis, u)
    step = u[1] - u[0]
    assert density.sum() * step == pytest.approx(P, rel=1e-6)
    top = np.abs(u - axis.position(10.0)) < 4 * WIDTH
    mass = density[top].sum() * step
    mean = (u * density)[top].sum() * step / mass
    spread = np.sqrt(((u - mean) ** 2 * density)[top].sum() * step / mass)
    assert mass == pytest.approx(0.3 * P, rel=1e-3)
    assert spread == pytest.approx(WIDTH, rel=0.02)


def test_many_exact_eigenvalues_are_smoothed_like_few():
    rng = np.random.default_rng(0)
    nodes = np.sort(rng.normal(size=3000))
    one = spectrum(tuple(nodes.tolist()), tuple([1 / 3000] * 3000), n_parameters=3000)
    axis = Axis.over([one])
    u = axis.grid(101)
    direct = np.exp(-0.5 * ((u[:, None] - axis.position(nodes)) / WIDTH) ** 2).sum(1)
    direct /= WIDTH * np.sqrt(2 * np.pi)
    assert smoothed(one, axis, u) == pytest.approx(direct, rel=0.02, abs=1.0)
