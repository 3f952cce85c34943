"""What a matrix of scores says: R[i][j], the score on task j after training on task i."""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def summary(matrix: Matrix) -> dict[str, float]:
    """Figures of a stream of T tasks under the names of their formulas (indices from 1).

    ================================  ==========================================================
    ``overall.mean_final``            1/T Σ_j R[T][j]
    ``overall.mean_incremental``      1/T Σ_i 1/i Σ_{j≤i} R[i][j] (iCaRL's average)
    ``learning.mean_diagonal``        1/T Σ_j R[j][j]: what was learned when it was new
    ``forgetting.max_excl_last``      1/(T−1) Σ_{j<T} (max_{j≤i<T} R[i][j] − R[T][j])
                                      (Chaudhry et al. 2018)
    ``bwt.gem_T``                     1/(T−1) Σ_{j<T} (R[T][j] − R[j][j]) (Lopez-Paz, Ranzato 2017)
    ``bwt.positive``                  max(bwt.gem_T, 0) (Díaz-Rodríguez et al. 2018)
    ================================  ==========================================================

    Raises:
        ValueError: The matrix is not square or has fewer than two tasks.
    """
    tasks = len(matrix)
    if tasks < 2 or any(len(row) != tasks for row in matrix):
        raise ValueError("a square matrix of at least two tasks is wanted")
    last = matrix[-1]
    earlier = range(tasks - 1)
    best = [max(matrix[i][j] for i in range(j, tasks - 1)) for j in earlier]
    backward = sum(last[j] - matrix[j][j] for j in earlier) / len(earlier)
    return {
        "overall.mean_final": sum(last) / tasks,
        "overall.mean_incremental": sum(sum(matrix[i][: i + 1]) / (i + 1) for i in range(tasks))
        / tasks,
        "learning.mean_diagonal": sum(matrix[j][j] for j in range(tasks)) / tasks,
        "forgetting.max_excl_last": sum(best[j] - last[j] for j in earlier) / len(earlier),
        "bwt.gem_T": backward,
        "bwt.positive": max(backward, 0.0),
    }
