"""Networks against built relays, of which one is killed (RELAYS §8). They need AGORA_BINARY."""
import asyncio
import pathlib
import signal
import tempfile
import threading

from agora_relay import Identity, Network, RelayError, State, Timing, content_hash, sync

from .test_relay import RealRelay, line_of

TIMING = Timing(silence=2.0, offer=60.0, tick=0.1)


class RealRelays(RealRelay):
    log = "on"

    def one(self, name, addr="127.0.0.1:0"):
        """Starts one more relay."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder, prefix=name))
        command = [self.agora, "serve", "--addr", addr, "--data", folder, "--log-level", "warn", "--transparency", "on"]
        return self.start(command, self.addCleanup)

    def relays(self, *names):
        """Starts relays at once, and returns each with its URL."""
        started = [self.one(name) for name in names]
        return [(process, line_of(process, r"listening on (http\S+)")[1]) for process in started]

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()


class Kills(RealRelays):
    async def trade(self, moment, home, url, others):
        """A job whose home is killed at a moment."""
        loop, me = asyncio.get_running_loop(), Identity.generate()
        worked, began, news = [], asyncio.Event(), []

        async def work(job):
            worked.append(job.params)
            began.set()
            await asyncio.sleep(0.3)
            if moment == "before RESULT":
                self.kill(home)
            return moment

        urls = [url, *others]
        async with (
            Network(urls, me, state=State(self.folder / f"{moment}.state"), timing=TIMING) as agent,
            Network(urls, Identity.generate(), timing=TIMING, on_continue=news.append, proofs="required") as network,
        ):
            serving = asyncio.create_task(agent.serve("x", work, manifest={"name": moment}))
            async with asyncio.timeout(20):
                for client in network.clients:
                    while not await network._look(client.agent(me.did)):
                        await asyncio.sleep(0.1)
            if moment == "before OFFER":
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            call = await network.request("x", moment, to=me.did)
            if moment == "before OFFER":
                self.kill(home)
                serving = asyncio.create_task(agent.serve("x", work))
            offer = await call.best("first", seconds=30)
            if moment in ("after OFFER", "another key"):
                self.kill(home)
            if moment == "another key":
                thief = self.one("thief", url.removeprefix("http://"))
                await asyncio.to_thread(line_of, thief, "listening on")
            died = loop.time()
            await call.accept(offer)
            if moment == "after ACCEPT":
                self.kill(home)
            if moment == "during work":
                await began.wait()
                self.kill(home)
            result = await call.result(seconds=35)
            self.assertLess(loop.time() - died, 35)
            await call.close()
            self.assertEqual((result.output, worked), (moment, [moment]))
            self.assertEqual(len(news), 1)
            results = []
            for client in network.clients[1:]:
                for leg in call._legs[1:]:
                    found = await network._look(client.thread(leg.call.thread))
                    results += [e for e in (found.events if found else []) if e.type == "RESULT"]
            self.assertEqual([e.hash for e in results], [result.event.hash])
            self.check_chain(call, results[0])
            if moment == "another key":
                with self.assertRaisesRegex(RelayError, "THREAD_NOT_FOUND"):
                    await network.clients[0].thread(call._legs[0].call.thread)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            agent.state.close()

    def check_chain(self, call, result):
        """R-5, R-6."""
        first, last = call._legs[0], call._legs[-1]
        self.assertEqual(last.request["meta"]["continues"], content_hash(first.request))
        self.assertIn(result.envelope["meta"]["re"], last.call._accepts)

    def test_kill_9(self):
        """One RESULT, work once, wherever the home is killed; and if another relay takes its address (R-4)."""
        moments = ["before OFFER", "after OFFER", "after ACCEPT", "during work", "before RESULT", "another key"]
        *homes, (_, third) = self.relays(*(f"a{n}" for n in range(len(moments))), "c")

        async def main():
            trades = (self.trade(m, *home, [self.url, third]) for m, home in zip(moments, homes))
            await asyncio.gather(*trades)

        asyncio.run(main())

    def test_sync_face(self):
        [(home, url)] = self.relays("a")
        me = Identity.generate()
        with sync.Network([url, self.url], me, timing=TIMING) as agent, sync.Network(
            [url, self.url], Identity.generate(), timing=TIMING
        ) as network:
            serving = threading.Thread(target=agent.serve, args=("y", lambda job: job.params), kwargs={"price": 1})
            serving.start()
            self.assertEqual(network.ask("y", 5, rule="first", max_cost=1, timeout=30).output, 5)
            self.kill(home)
            call = network.request("y", 6)
            call.accept(call.best("first", seconds=30))
            self.assertEqual(call.result(seconds=30).output, 6)
            self.assertEqual([info.about is None for info in network.relays()], [True, False])
            for event in network.follow(thread=call.thread, from_oldest=True):
                self.assertEqual(event.type, "REQUEST")
                break
            self.assertEqual(network.agents(intent="nothing"), [])
            agent.close()
            serving.join(10)
            self.assertFalse(serving.is_alive())
