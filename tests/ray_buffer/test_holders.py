"""What a shard knows of those who hold something: no more than they still hold."""

import asyncio
import math

from reroll.ray.holders import Holders, Thing
from reroll.ray.wire import Holder


async def test_what_has_ended_is_forgotten_while_its_holder_lives():
    is_open, given_back = {("lease", 1), ("lease", 2)}, list[Thing]()

    async def give_back(thing: Thing) -> None:
        given_back.append(thing)

    holders = Holders(give_back, is_open.__contains__, ttl_s=1000.0)
    driver = Holder("driver", None)
    for thing in (("reservation", "put"), ("lease", 1), ("lease", 2)):
        holders.hold(driver, thing)
    (watch,) = holders._watches.values()
    await asyncio.sleep(0)
    assert holders._things == {"driver": is_open}
    is_open.discard(("lease", 2))
    holders._heard["driver"] = -math.inf  # it tells no more that it lives
    await asyncio.wait_for(watch, 60)
    assert given_back == [("lease", 1)]
    assert not holders._things
    assert not holders._holder_of
