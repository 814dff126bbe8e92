"""How an episode is played, one way a file."""

from collections.abc import Iterable

from turnwise.components import COMPONENTS, Component, nearest
from turnwise.protocols import Agent, Choosy, Preparable, Setting
from turnwise.types import Sample

# As data sets made for verl call them.
_ALIASES = {"tool_agent": "tool", "single_turn_agent": "single_turn"}


class Agents:
    """The agents of one slot: those of the recipe, its own playing what names none, and what else samples name."""

    def __init__(self, setting: Setting):
        """Agents that the recipe does not describe are made when a sample first names them."""
        self._setting = setting
        self._made = {"": self._make(setting.config.agent)}
        for name, component in setting.config.agents.items():
            try:
                self._made[name] = self._make(component)
            except ValueError as error:
                raise ValueError(f"agents.{name}: {error}") from error

    def prepare(self) -> None:
        """Wait for what takes long to be made, such as environments, which are made beside those of other slots."""
        for agent in self._made.values():
            if isinstance(agent, Preparable):
                agent.prepare()

    def of(self, sample: Sample | None) -> Agent:
        """Who plays this sample; without one, the recipe's own agent."""
        name = sample.agent if sample else ""
        if name not in self._made:
            self._made[name] = self._make(self._component(name))
        return self._made[name]

    def _make(self, component: Component) -> Agent:
        asked = self._setting.shared.asked
        asked.clear()
        made = component.make("agent", setting=self._setting)
        if not callable(getattr(made, "run", None)):
            raise ValueError(f"agent.use is {component.use!r}, which has no method run(session); give it one")
        reward = self._setting.config.reward
        if reward is not None and "reward" not in asked:
            raise ValueError(
                f"reward.use={reward.use} would never be asked by agent.use={component.use}; let that make a "
                "turnwise.agents.judge.Judge of its setting, or leave the reward out"
            )
        return made

    def refuse_strangers(self, samples: Iterable[Sample]) -> None:
        """A ValueError where one names an agent that there is not, or what its agent cannot play."""
        for sample in samples:
            try:
                agent = self.of(sample)
                if isinstance(agent, Choosy):
                    agent.refuse(sample)
            except ValueError as error:
                raise ValueError(f"{sample.place}: {error}") from error

    def _component(self, name: str) -> Component:
        """What a sample may mean by a name that the recipe does not give."""
        config = self._setting.config
        use = _ALIASES.get(name, name)
        if use == config.agent.use:
            return config.agent
        known = [*config.agents, *(name for name in COMPONENTS["agent"] if name != "gym")]  # gym plays no samples
        if use not in known:  # `module:Class` is for recipes alone: data is not trusted to load code
            raise ValueError(
                f"a sample names the agent {name!r}{nearest(name, known)}; or describe it in agents.{name}"
            )
        return Component(use=use)
