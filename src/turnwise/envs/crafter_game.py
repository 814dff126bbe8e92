"""The game of the crafter package as a function of its seed, and of nothing that is outside of it."""

from typing import Any

import crafter
import numpy as np
from crafter import constants, objects

from turnwise.envs.crafter_world import EDGE, draw_world

_Env: Any = crafter.Env  # whose types pyright infers too narrowly for anything to be overridden


class Game(_Env):
    """Without pictures, with our worlds, and with crafting allowed at the edge of the world."""

    def __init__(self) -> None:
        super().__init__(length=None, seed=0)
        self._world.nearby = self._nearby

    @property
    def player(self) -> Any:
        return self._player

    def begin(self, seed: int) -> None:
        world, (width, height) = self._world, self._area
        world.reset(seed)
        self._step = 0
        self._update_time()
        self._player = objects.Player(world, (width // 2, height // 2))
        self._last_health, self._unlocked = self._player.health, set()
        world.add(self._player)
        materials, creatures = draw_world(world.random, width, height)
        for x, y in np.ndindex(width, height):
            world[x, y] = materials[x, y]
            if creature := str(creatures[x, y]):
                known = () if creature == "cow" else (self._player,)
                world.add(getattr(objects, creature.capitalize())(world, (x, y), *known))

    def kind(self, place: tuple[int, int]) -> str:
        """What a cell shows: the creature or plant in it, else its material."""
        material, thing = self._world[place]
        if thing is None:
            return material or EDGE
        return "ripe plant" if thing.texture == "plant-ripe" else type(thing).__name__.lower()

    def recipe(self, verb: str, thing: str) -> dict[str, Any]:
        return getattr(constants, verb)[thing]

    def beside(self, material: str) -> bool:
        return material in self._nearby(self._player.pos, 1)[0]

    def render(self, size: Any = None) -> Any:
        random = self._world.random.get_state()  # a picture of the night draws noise, and must not change the game
        try:
            return super().render(size)
        finally:
            self._world.random.set_state(random)

    def _obs(self) -> None:
        """Each step would draw a picture, at more than the cost of everything else."""

    def _nearby(self, pos: Any, distance: int) -> tuple[set[Any], set[Any]]:
        # The original finds nothing in the first row and column, where its slices begin below 0.
        around = range(-distance, distance + 1)
        cells = [self._world[pos[0] + x, pos[1] + y] for x in around for y in around]
        return {material for material, _ in cells}, {thing for _, thing in cells if thing}

    def _balance_chunk(self, chunk: Any, creatures: Any) -> None:
        # The original chooses from a set, whose order is that of memory addresses.
        super()._balance_chunk(chunk, sorted(creatures, key=lambda creature: tuple(creature.pos)))
