"""The steps of the paper's distortion and convergence proofs that do not hold, and what holds in their place."""

from __future__ import annotations

from cepam_paper.section import Table

ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "Rate",
        "$N (H(\\mathrm{Geom}(p(U))|U) + H(\\lceil\\log|\\mathcal{M}(U)|\\rceil|U))$, $\\mathcal{M}(U) = (X + L - "
        "\\beta P) \\cap G Z^n$",
        "$N (H(\\mathrm{Geom}(p(U))|U) + E\\lceil\\log|\\mathcal{M}(U)|\\rceil)$, $\\mathcal{M}(U) = ((X + L - \\beta "
        "P)/\\beta) \\cap G Z^n$",
        "the second entropy is of a function of U, hence zero; $M$ is rounded from $x/\\beta$; and it is not"
        " 'at most' that: a Golomb code costs up to a bit more than the entropy of $H$",
    ),
    (
        "Weight distance",
        "$\\eta^2 N (\\mathrm{Var}(f) + M^2) \\sum_k p_k^2$, 'by the triangle inequality'",
        "$\\eta^2 ((\\sum_k p_k c_k)^2 + E\\|Z\\|^2 \\sum_k p_k^2)$, $c_k = \\max(0, M_k - \\gamma)$",
        "noises are independent and zero-mean, clipping errors are neither; as printed it is true where $N \\ge K$",
    ),
    (
        "M and AS2",
        "suprema over all of $R^m$",
        "suprema over a bounded domain, which local steps do not leave",
        "strongly convex functions have unbounded gradients on $R^m$; with the sample in the supremum, as printed, "
        "$\\theta_k \\le M$ holds",
    ),
    (
        "$\\psi$",
        "$F(w^*) - \\sum_k \\min F_k$",
        "$\\Gamma = F(w^*) - \\sum_k p_k \\min F_k$",
        "without $p_k$ a constant in the losses makes $\\psi$, and $B$, as negative as one likes",
    ),
    (
        "$E[J] = \\bar J$",
        "because $Z$ has zero mean",
        "only if clipping is idle ($\\gamma \\ge M$); else $E[J] = \\bar J + b$, $\\|b\\| \\le \\sum_k p_k c_k$",
        "the clipping error has a direction: clipped training has a floor",
    ),
    (
        "Lemma 12",
        "$\\sum_k p_k^2 (\\theta_k^2 + N(\\mathrm{Var}(f) + M^2))$, the cross term 0",
        "$(\\sum_k p_k c_k)^2 + \\sum_k p_k^2 (\\min(\\theta_k^2, \\gamma^2) + E\\|Z\\|^2)$",
        "the clipping error has no zero mean; as printed it is true where $N \\ge K$",
    ),
    (
        "Lemma 13, step (c)",
        "the factor $t - 1 - t_0$ for a sum of $t - t_0$ vectors",
        "$t - t_0 \\le \\tau - 1$",
        "a slip: the inequality of Cauchy and Schwarz has the number of terms, and the lemma is right",
    ),
    (
        "Lemma 1 of Li et al. at a synchronization",
        "$(1 - C\\eta) \\|W_{t_0} - w^*\\|^2$ + … with drift from the mean of the local models",
        "$(1 - q C\\eta) \\|W_{t_0} - w^*\\|^2 + (2 + 7 C\\eta) \\sum_k p_k \\|W_{t_0} - W^k\\|^2$ + …, $q \\ge 5/4$",
        "the step starts at $W_{t_0}$, so drift counts from there (equal clients have no drift from their mean, and the"
        " printed inequality fails). $\\|W^k - w^*\\|^2 \\ge (1-c)\\|W_{t_0} - w^*\\|^2 - (1/c-1)\\|W_{t_0} - "
        "W^k\\|^2$ costs"
        " a share $c = 1/8$ of the contraction; keeping $-(1 - L\\eta)(F(W) - F^*)$, which Li et al. drop, brings more "
        "back",
    ),
    (
        "Induction",
        "$\\delta_{t+\\tau} \\le \\delta_t$ times $\\tau$ contractions, $+ B \\sum_i \\eta_i^2$",
        "one contraction a round: $\\delta_{t+\\tau} \\le (1 - q C\\eta) \\delta_t + B\\eta^2$",
        "local steps move the clients' models, not the server's; its own recursion has $\\delta_{t+1-\\tau}$",
    ),
    (
        "Sum over $i$",
        "from $i = 1$ to $t + \\tau - 1$",
        "from $i = t$",
        "only the round's own steps enter; from 1 on the sum does not shrink and $4\\tau\\eta_t^2$ does not bound it",
    ),
    (
        "Exponential",
        "$e^{-x} \\le 1 - x/2$ at $x = \\tau^2/(t + \\tau + \\alpha)$",
        "only for $x \\le 1.59$; the repaired induction does without it",
        "at $L = C$, $t = 0$ it is $x = \\tau/5$: 2 and 3 for $\\tau = 10$ and 15",
    ),
    (
        "Ratio",
        "$(m\\tau + \\tau + \\alpha)/(m\\tau + \\alpha) \\ge (\\tau + \\alpha)/\\alpha$",
        "$\\le$",
        "the ratio falls with $m$; the use made of it needs $\\le$, so the conclusion stands",
    ),
    (
        "Constant",
        "$\\zeta = \\tau/C$ turns $C\\zeta/2 - 1$ into $\\tau - 1$",
        "into $\\tau/2 - 1$",
        "arithmetic; as derived the constant needs $\\tau > 2$. The repaired constant $4\\tau$ needs neither",
    ),
    (
        "Start",
        "$\\alpha \\|W_0 - w^*\\|$, $\\delta_t = E\\|W - w^*\\|$",
        "$\\alpha \\|W_0 - w^*\\|^2$, $\\delta_t = E\\|W - w^*\\|^2$",
        "the recursion is one of squares",
    ),
    (
        "Theorem",
        "$\\frac{L}{2(T+\\alpha)} \\max\\{4 B \\tau^2 (\\tau+\\alpha)/(C^2 \\alpha (\\tau-1)), \\alpha "
        "\\|W_0-w^*\\|\\}$ for every $\\gamma \\in (0, M]$",
        "$\\frac{L}{2(T+\\alpha)} \\max\\{4\\tau B/C^2, \\alpha \\|W_0-w^*\\|^2\\}$,"
        " $B = 6 L \\Gamma + \\sum_k p_k^2 (\\theta_k^2 + E\\|Z\\|^2) + 6 (\\tau-1)^2 \\sum_k p_k \\theta_k^2$, for "
        "$\\gamma \\ge M$;"
        " plus $32 L (\\sum_k p_k c_k)^2/(9 C^2)$ and larger constants else",
        "all of the above; the learning rates are the printed ones",
    ),
)


def repairs() -> Table:
    """The table of repairs."""
    return Table(
        "proof_repairs",
        "Steps of the proofs: what is printed and what holds",
        ("step", "printed", "what holds", "why"),
        ROWS,
        "Proofs are in docs/paper/theory.md; the counterexamples run in this part.",
    )
