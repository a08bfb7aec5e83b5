from setuptools import setup

setup(name="miniparse", version="0.3.1", packages=["miniparse"])
