"""Lists what refuses or delays calls now (restrictions): by deployments, or by an operator or the gateway as a whole
(operator)."""
