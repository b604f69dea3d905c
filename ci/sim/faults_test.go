package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// mortal is a program.
type mortal interface {
	begin()
	end(crash bool)
	dieSoon()
}

// restart ends a program, and starts it again after a pause.
func restart(p mortal, crash bool, pause time.Duration) {
	p.end(crash)
	time.Sleep(pause)
	p.begin()
}

// disturb lets the clients ask for jobs, and things fail for some minutes.
func (s *system) disturb() (tasks []*task) {
	for range 7 + s.random.IntN(8) {
		if s.random.IntN(3) > 0 {
			tasks = append(tasks, s.askSomebody(true))
		}
		time.Sleep(time.Duration(s.random.IntN(14_000)) * time.Millisecond)
		s.fail()
	}
	return tasks
}

// askSomebody lets a client ask one agent, or all.
func (s *system) askSomebody(faithless bool) *task {
	c, to := s.clients[s.random.IntN(2)], s.agents[s.random.IntN(3)].key.DID()
	if s.random.IntN(3) == 0 {
		to = didkey.DID("")
	}
	return c.ask(to, faithless && to == "" && s.random.IntN(3) == 0)
}

// fail lets something fail.
func (s *system) fail() {
	r := s.sites[s.random.IntN(len(s.sites))]
	switch s.random.IntN(12) {
	case 0, 1:
		r.strike([]Fault{Kill, PowerLoss}[s.random.IntN(2)], s.random.IntN(40))
	case 2:
		r.end()
	case 3, 4:
		if !r.restoreBackup() {
			r.backUp()
		}
	case 5, 6:
		s.cutOff(s.party(), r, time.Duration(s.random.IntN(120))*time.Second, s.random.IntN(3) == 0)
	case 7, 8:
		a := s.agents[s.random.IntN(len(s.agents))]
		s.endSomehow(a.name, a)
	case 9, 10:
		c := s.clients[s.random.IntN(len(s.clients))]
		s.endSomehow(c.name, c)
	default:
		c, step := s.clocks[s.random.IntN(len(s.clocks))], time.Duration(s.random.IntN(180)-90)*time.Second
		s.Logf("%s: a clock is set by %v", time.Now().Format(time.TimeOnly), step)
		c.set(step - time.Duration(c.offset.Load()))
	}
}

// party returns a party of the network.
func (s *system) party() *wire {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := slices.Sorted(maps.Keys(s.parties))
	return s.parties[names[s.random.IntN(len(names))]]
}

// cutOff cuts a party off from a relay, or only its posts.
func (s *system) cutOff(w *wire, r *site, d time.Duration, posts bool) {
	c := cut{time.Now().Add(d), s.random.IntN(2) == 0, posts}
	s.Logf("%s: %s is cut off from %s: %v", time.Now().Format(time.TimeOnly), w.name, r.host, c)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cuts[r.host] = c
}

// endSomehow stops a program, or lets it crash, now or when it posts. It starts again.
func (s *system) endSomehow(name string, p mortal) {
	pause := []time.Duration{0, time.Second, 30 * time.Second}[s.random.IntN(3)]
	how := s.random.IntN(3)
	s.Logf("%s: %s ends (%d)", time.Now().Format(time.TimeOnly), name, how)
	if how == 2 {
		p.dieSoon()
		time.Sleep(time.Duration(s.random.IntN(25)) * time.Second)
	}
	restart(p, how > 0, pause)
}

// heal ends all faults.
func (s *system) heal() {
	s.Logf("%s: no more faults", time.Now().Format(time.TimeOnly))
	s.lossy.Store(false)
	s.reconnect()
	close(s.calmed)
	for _, r := range s.sites {
		r.whileUp(r.disk.Calm)
	}
}

// reconnect ends what cutOff has begun.
func (s *system) reconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.parties {
		w.mu.Lock()
		w.cuts = map[string]cut{}
		w.mu.Unlock()
	}
}

// nothing does nothing. It stands for the end of a fault that ends by itself.
func (s *system) nothing() {}

// single is the fault of a round.
type single struct {
	name     string
	happen   func(tasks []*task) (end func())
	still    bool // no job is to be continued at another relay
	directed bool // no job is for every agent
	forgets  bool // a relay may have lost an OFFER, and refuse its ACCEPT; then the job ends (RELAYS R-16)
}

// singles returns the faults of a round. All jobs must be done in spite of one.
func (s *system) singles() []single {
	return append(s.faultsOfHomes(), []single{{name: "relays restart", happen: func(tasks []*task) func() {
		for range 3 {
			time.Sleep(time.Duration(s.random.IntN(15_000)) * time.Millisecond)
			s.homeOf(tasks).strike([]Fault{Kill, PowerLoss}[s.random.IntN(2)], s.random.IntN(20))
		}
		return s.nothing
	}}, {name: "the home of a job is cut off from a program", happen: func(tasks []*task) func() {
		w := []*program{s.clients[0].program, s.clients[1].program, s.agents[s.random.IntN(3)].program}[s.random.IntN(3)].wire
		s.cutOff(w, s.homeOf(tasks), jobBound, false)
		return s.reconnect
	}}, {name: "the agents do not reach a relay", directed: true, happen: func([]*task) func() {
		r := s.sites[s.random.IntN(len(s.sites))]
		for _, a := range s.agents {
			s.cutOff(a.wire, r, jobBound, false)
		}
		return s.reconnect
	}}, {name: "a relay gets no posts of the clients", happen: func([]*task) func() {
		r := s.sites[s.random.IntN(len(s.sites))]
		time.Sleep(time.Duration(s.random.IntN(600)) * tick)
		for _, c := range s.clients {
			s.cutOff(c.wire, r, jobBound, true)
		}
		return s.reconnect
	}}, {name: "the agents crash", still: true, happen: func([]*task) func() {
		for range 2 { // an agent begins a job three times at most
			a := s.agents[s.random.IntN(len(s.agents))]
			a.dieSoon()
			time.Sleep(time.Duration(1+s.random.IntN(25)) * time.Second)
			restart(a, s.random.IntN(3) > 0, time.Second)
		}
		return s.nothing
	}}, {name: "the clients crash", still: true, happen: func([]*task) func() {
		for range 3 {
			time.Sleep(time.Duration(s.random.IntN(15_000)) * time.Millisecond)
			c := s.clients[s.random.IntN(2)]
			c.dieSoon()
			time.Sleep(3 * time.Second)
			restart(c, true, time.Second)
		}
		return s.nothing
	}}, {name: "requests are late, come twice, and answers are lost", happen: func([]*task) func() {
		s.lossy.Store(true)
		return func() { s.lossy.Store(false) }
	}}}...)
}

// faultsOfHomes returns faults of the relay where a job is.
func (s *system) faultsOfHomes() []single {
	soon := func() { time.Sleep(time.Duration(s.random.IntN(2500)) * tick) }
	dies := single{name: "the home of a job dies", happen: func(tasks []*task) func() {
		soon()
		return s.homeOf(tasks).hold()
	}}
	restored := single{name: "the home of a job is restored", forgets: true, happen: func(tasks []*task) func() {
		if s.random.IntN(2) == 0 { // else the backups have none of the jobs
			time.Sleep(time.Duration(s.random.IntN(500)) * tick)
		}
		for _, r := range s.sites {
			r.backUp()
		}
		soon()
		s.homeOf(tasks).restoreBackup()
		return s.nothing
	}}
	return []single{dies, dies, restored, restored}
}

// homeOf returns the relay where one of the jobs is now.
func (s *system) homeOf(tasks []*task) *site {
	t := tasks[s.random.IntN(len(tasks))]
	s.clients[0].lock.Lock()
	s.clients[1].lock.Lock()
	defer s.clients[0].lock.Unlock()
	defer s.clients[1].lock.Unlock()
	if t.call != nil {
		if _, home := t.call.Thread(); home.DID != "" {
			return s.siteOf(home.DID)
		}
	}
	return s.sites[s.random.IntN(len(s.sites))]
}

// round lets the clients ask for some jobs while a fault happens. Each must be done within the bound, besides the work.
func (s *system) round(f single, bound time.Duration) {
	name := f.name
	s.Logf("%s: a round: %s", time.Now().Format(time.TimeOnly), name)
	var tasks []*task
	for range 4 {
		if f.directed {
			tasks = append(tasks, s.clients[s.random.IntN(2)].ask(s.agents[s.random.IntN(3)].key.DID(), false))
		} else {
			tasks = append(tasks, s.askSomebody(false))
		}
	}
	end := f.happen(tasks)
	s.await(tasks)
	end()
	for _, t := range tasks {
		if t.isOver() && t.refused && f.forgets {
			continue
		}
		if t.isOver() && t.err != nil {
			s.Errorf("%s: job %d: %v", name, t.job, t.err)
		} else if extra := t.took - s.worked(t.job); extra > bound {
			s.Errorf("%s: job %d took %v besides the work", name, t.job, extra)
		} else if f.still && t.moves > 0 {
			s.Errorf("%s: job %d was continued at another relay, though none has failed", name, t.job)
		}
	}
}

// await waits until the jobs have ended, which must be soon after the faults have.
func (s *system) await(tasks []*task) {
	limit := time.After(jobBound)
	for _, t := range tasks {
		select {
		case <-t.ended:
		case <-limit:
			s.Errorf("job %d has not ended %v after the last fault", t.job, jobBound)
			return
		}
	}
}
