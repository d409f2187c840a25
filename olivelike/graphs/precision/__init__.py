"""Half precision in graphs: conversion, and what must stay in float32."""
