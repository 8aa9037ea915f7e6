package check

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"

	"byre/e2e/robustness/history"
)

// register is one object, as porcupine models it.
type register struct {
	// revision is 0 where there is no object, and unseen where a write took effect
	// of which nobody saw the revision.
	revision int64
	value    string
	// last is the greatest revision so far.
	last int64
}

const unseen = -1

// model is one object a partition: a history of thousands of operations on few objects
// is then checked in a fraction of a second.
func model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			byName := map[string][]porcupine.Operation{}
			for _, p := range all {
				name := p.Input.(*history.Operation).Object.Name
				byName[name] = append(byName[name], p)
			}
			var parts [][]porcupine.Operation
			for _, part := range byName {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() []any { return []any{register{}} },
		Step: func(state, input, _ any) []any { return step(state.(register), input.(*history.Operation)) },
		DescribeOperation: func(input, _ any) string {
			o := input.(*history.Operation)
			return fmt.Sprintf("%s %+v: %s %s %+v", o.Kind, o.Object, o.Outcome, o.Error, o.Result)
		},
	}
	return m.ToModel()
}

// step returns the states in which an operation may leave the object.
func step(at register, o *history.Operation) []any {
	switch o.Outcome {
	case history.OK:
		if next, ok := succeed(at, o); ok {
			return []any{next}
		}
		return nil
	case history.Failed:
		if fails(at, o) {
			return []any{at}
		}
		return nil
	default:
		// The write took effect at an unknown revision, or it did not.
		if next, ok := happen(at, o); ok {
			return []any{at, next}
		}
		return []any{at}
	}
}

// precondition reports whether a write takes effect.
func precondition(at register, o *history.Operation) bool {
	switch {
	case o.Kind == history.Create:
		return at.revision == 0
	case at.revision == 0:
		return false
	case o.Kind == history.Patch, o.Object.Revision == 0:
		return true
	default:
		return at.revision == o.Object.Revision
	}
}

func succeed(at register, o *history.Operation) (register, bool) {
	switch {
	case o.Kind == history.Get:
		return at, at.revision == o.Result.Revision && at.value == o.Result.Value
	case !precondition(at, o):
		return at, false
	case o.Kind == history.Touch:
		return at, o.Result.Revision == at.revision
	case o.Kind == history.Delete:
		return register{last: at.last}, true
	default:
		r := o.Result.Revision
		return register{revision: r, value: o.Object.Value, last: r}, r > at.last
	}
}

// happen is succeed for a write whose revision nobody saw.
func happen(at register, o *history.Operation) (register, bool) {
	switch {
	case !precondition(at, o):
		return at, false
	case o.Kind == history.Delete:
		return register{last: at.last}, true
	default:
		return register{revision: unseen, value: o.Object.Value, last: at.last}, true
	}
}

// fails reports whether the state of the object explains the error.
func fails(at register, o *history.Operation) bool {
	switch o.Error {
	case history.AlreadyExists:
		return at.revision != 0
	case history.NotFound:
		return at.revision == 0
	case history.Conflict:
		// A patch conflicts when others win too often. One that finds another uid, or
		// no object under the uid of its precondition, conflicts too.
		return o.Kind == history.Patch || at.revision != o.Object.Revision
	default:
		return true // it says nothing about the object
	}
}

// checkLinearizable looks for an order of the operations on each object that explains
// all that they returned.
func (j *judge) checkLinearizable(h *history.History, ref *reference, patience time.Duration) {
	var operations []porcupine.Operation
	clients := map[string]int{}
	for _, o := range h.Operations {
		o, end, counts := resolve(o, ref)
		if !counts {
			continue
		}
		if _, known := clients[o.Client]; !known {
			clients[o.Client] = len(clients)
		}
		operations = append(operations, porcupine.Operation{
			ClientId: clients[o.Client], Input: o, Call: int64(o.Begin), Return: int64(end),
		})
	}
	m := model()
	// One object at a time, so that a violation names it.
	for _, part := range m.Partition(operations) {
		name := part[0].Input.(*history.Operation).Object.Name
		switch result := porcupine.CheckOperationsTimeout(m, part, patience); result {
		case porcupine.Ok:
		case porcupine.Unknown:
			j.report(0, Linearizable, "porcupine did not end within %v on the %d operations of %s", patience, len(part), name)
		default:
			j.report(0, Linearizable, "no order explains the %d operations of %s", len(part), name)
		}
	}
}

// resolve returns an operation as the model gets it, the time at which it ended at the
// latest, and whether the model gets it at all. An unknown outcome becomes known if a client
// saw the value, or if the log has all changes and the value is not among them.
func resolve(o *history.Operation, ref *reference) (*history.Operation, time.Duration, bool) {
	switch {
	case o.Kind == history.List, o.Kind == history.Get && o.Mode != history.Latest:
		return nil, 0, false // checked by their revision
	case o.Outcome != history.Unknown:
		return o, o.End, o.Outcome == history.OK || saysSomething(o)
	case !o.IsWrite():
		return nil, 0, false
	case !o.Puts():
		return o, forever, true
	}
	c := ref.byValue[o.Object.Value]
	if c == nil {
		return o, forever, !ref.isEnded()
	}
	resolved := *o
	resolved.Outcome = history.OK
	resolved.Result = history.Object{Name: c.name, Revision: c.revision, Value: c.value, Color: c.color}
	return &resolved, max(c.seen, o.Begin+1), true
}

func saysSomething(o *history.Operation) bool {
	return o.Error == history.AlreadyExists || o.Error == history.NotFound || o.Error == history.Conflict
}

// isEnded reports whether the values of all changes are known: a value that is not among
// them was never written.
func (r *reference) isEnded() bool {
	if r.isCut || len(r.log.Covered) != 1 || r.log.Covered[0].First > r.initial+1 {
		return false
	}
	for _, c := range r.changes {
		if !c.deletes && c.value == "" {
			return false
		}
	}
	return true
}
