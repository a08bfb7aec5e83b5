"""Forms in which recorded rollouts are given to other projects, one file each. The contract is
`harnessgym.traces.export`.
"""
