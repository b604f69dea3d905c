package schema

// The roles in the table thread_role. Each thread has one row of the first two, with an empty party, and a row for its
// client. Of an agent's threads, those in which it works come first, so that no number of threads that name the agent
// can hide them.
const (
	RoleClosed  = 0 // the thread itself: no other agent may offer
	RoleOpen    = 1 // the thread itself: any agent may offer
	RoleClient  = 2
	RoleWorker  = 3 // the agent whose offer was accepted, beside its row as a partner
	RolePartner = 4 // the agent that the REQUEST names, or one that has offered
)

// OwnRole returns the role of the row that a thread has for itself.
func OwnRole(open bool) int {
	if open {
		return RoleOpen
	}
	return RoleClosed
}
