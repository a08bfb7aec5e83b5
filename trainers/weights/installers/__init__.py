"""Installers of weights into external engines, one file each."""
