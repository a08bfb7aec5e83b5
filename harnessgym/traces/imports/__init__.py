"""Forms in which rollouts come from other projects, one file each. The contract is
`harnessgym.traces.import_`.
"""
