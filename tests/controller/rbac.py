"""To come."""
from checks import check
@check("x")
def x(cluster): pass
