package history

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// readRows makes the rows, of which a reader of the incident sees the newest first.
func (r *timelineReader) readRows() error {
	var rows []*Row
	alike := map[string]*Row{} // the rows of Events and conditions
	add := func(row Row, key string) {
		same := alike[key]
		if same == nil || r.All {
			alike[key] = &row
			rows = append(rows, &row)
			return
		}
		count, first := same.Count+row.Count, *cmp.Or(same.First, &same.Time)
		if of := *cmp.Or(row.First, &row.Time); of.Before(first) {
			first = of
		}
		if same.Time.Before(row.Time) {
			*same = row
		}
		same.First, same.Count = &first, count
	}
	fights := r.fights()
	var last *Row // that of the last change, to which those of controllers are added
	for _, c := range slices.Backward(r.changes) {
		id := idOf(&c.Object)
		relation, isRelated := r.related[id]
		if !isRelated || !c.Time.After(r.Since) {
			continue
		}
		row := &Row{
			Time: c.Time.Time, Revision: c.Revision, Who: c.Who, Verb: c.FullVerb(), Object: c.Object, Changed: c.Changed,
			What: c.Summary(), Why: relation.why, Count: 1,
		}
		fight := fights[c]
		isEcho := fight == nil && (c.Subresource == "status" || IsController(c.Who))
		switch {
		case r.All:
			rows = append(rows, row)
		case isEcho:
			conditions, err := r.conditions(c)
			if err != nil {
				return err
			}
			for _, what := range conditions {
				condition := *row
				condition.Verb, condition.What, condition.Changed = "condition", what, nil
				add(condition, "condition "+id.resource+" "+what)
			}
			if len(conditions) > 0 {
				continue
			}
			if last == nil {
				last = &Row{Time: c.Time.Time, Who: "controllers", Why: "before all others", Object: r.reference(idOf(&r.Object))}
				rows = append(rows, last)
			}
			last.Folded++
		case fight != nil:
			if fight.Count == 0 {
				*fight = Row{First: &row.Time, Who: fight.Who, Verb: "fight", Object: row.Object, Why: row.Why, What: fight.What}
				rows = append(rows, fight)
			}
			fight.Time, fight.Revision, fight.Changed, fight.Count = row.Time, row.Revision, row.Changed, fight.Count+1
			last = fight
		case last != nil && isAgain(last, row):
			row.First, row.Count, row.Folded = cmp.Or(last.First, new(last.Time)), last.Count+1, last.Folded
			if !isDeletion(row) {
				both := Change{Changed: slices.Clone(c.Changed), MoreChanged: c.MoreChanged}
				for i := range both.Changed {
					both.Changed[i].Old = last.Changed[i].Old
				}
				row.Changed, row.What = both.Changed, both.Summary()
			} else if idOf(&last.Object) == id {
				row.Count-- // several changes delete one object
			}
			*last = *row
		default:
			rows = append(rows, row)
			if id.group != groupOf(admissionVersion) { // controllers do nothing because of these
				last = row
			}
		}
	}
	if err := r.readEvents(add); err != nil {
		return err
	}
	slices.SortStableFunc(rows, func(a, b *Row) int {
		return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(b.Revision, a.Revision))
	})
	for _, row := range rows {
		r.incident.Rows = append(r.incident.Rows, *row)
	}
	return nil
}

// isAgain reports whether a change is like the one before, by the same user: of the same fields, or another deletion of
// objects of a kind.
func isAgain(last, row *Row) bool {
	if last.Who != row.Who || last.Verb != row.Verb {
		return false
	}
	if isDeletion(row) {
		return last.Object.Resource == row.Object.Resource && last.Why == row.Why
	}
	isSameField := func(a, b FieldChange) bool { return a.Path == b.Path }
	return idOf(&last.Object) == idOf(&row.Object) && len(row.Changed) > 0 &&
		slices.EqualFunc(last.Changed, row.Changed, isSameField)
}

func isDeletion(row *Row) bool {
	return strings.HasPrefix(row.Verb, "delete") || strings.HasSuffix(row.Verb, "/eviction")
}

// leastTurns is how many times the user who writes a field is another than before, at least, in a fight.
const leastTurns = 3

// fights returns the row of each change by which users set fields to and fro: they write by turns, and a value that its
// writer had set before is set again.
func (r *timelineReader) fights() map[*Change]*Row {
	type field struct {
		id   objectID
		path string
	}
	type writes struct {
		turns, restored int
		last            string
		who             []string
		values          map[string]string
	}
	fields := map[field]*writes{}
	isCandidate := func(c *Change) bool {
		_, isRelated := r.related[idOf(&c.Object)]
		return isRelated && c.Subresource != "status" && len(c.Changed) > 0 && c.Time.After(r.Since)
	}
	for _, c := range slices.Backward(r.changes) {
		if !isCandidate(c) {
			continue
		}
		who := c.writer()
		for _, changed := range c.Changed {
			at := field{idOf(&c.Object), changed.Path}
			w := fields[at]
			if w == nil {
				w = &writes{values: map[string]string{}}
				fields[at] = w
			}
			if w.last != "" && w.last != who {
				w.turns++
				if before, hasWritten := w.values[who]; hasWritten && before == changed.New {
					w.restored++
				}
			}
			if !slices.Contains(w.who, who) {
				w.who = append(w.who, who)
			}
			w.last, w.values[who] = who, changed.New
		}
	}
	type opponents struct {
		id  objectID
		who string
	}
	rows, fights := map[opponents]*Row{}, map[*Change]*Row{}
	for _, c := range r.changes {
		var in *Row
		isFight := func(changed FieldChange) bool {
			w := fields[field{idOf(&c.Object), changed.Path}]
			if w.turns < leastTurns || w.restored == 0 {
				return false
			}
			who := namesOf(w.who)
			if in = rows[opponents{idOf(&c.Object), who}]; in == nil {
				in = &Row{Who: who}
				rows[opponents{idOf(&c.Object), who}] = in
			}
			if what := changed.Path + ": "; !strings.Contains(in.What, what) {
				in.What = strings.TrimPrefix(in.What+", "+what+brief(changed.Old)+" ⇄ "+brief(changed.New), ", ")
			}
			return true
		}
		if isCandidate(c) && !slices.ContainsFunc(c.Changed, func(f FieldChange) bool { return !isFight(f) }) {
			fights[c] = in
		}
	}
	return fights
}

// writer tells apart who writes: the user and the field manager.
func (c *Change) writer() string { return c.Who + " (" + c.Manager + ")" }

// namesOf returns the writers of a fight, without their field managers if the users differ.
func namesOf(writers []string) string {
	users := make([]string, len(writers))
	for i, writer := range writers {
		users[i] = writer[:strings.LastIndex(writer, " (")]
	}
	if distinct := slices.Compact(slices.Sorted(slices.Values(users))); len(distinct) > 1 {
		return strings.Join(distinct, " ⇄ ")
	}
	return strings.Join(slices.Sorted(slices.Values(writers)), " ⇄ ")
}

// conditionPath is the path of a condition, or of what has changed in it.
var conditionPath = regexp.MustCompile(`^status(?:\.conditions(?:\[type=([^\]]+)\](?:\.status)?)?)?$`)

// conditions returns the conditions that a change of a status has changed, such as "Available: True → False (reason)".
// Of those that are new it returns what is wrong.
func (r *timelineReader) conditions(c *Change) (found []string, err error) {
	if c.Subresource != "status" || !slices.ContainsFunc(c.Changed, func(f FieldChange) bool {
		return conditionPath.MatchString(f.Path) && mayBeWrong(c, f)
	}) {
		return nil, nil
	}
	before, after, err := r.ends(c)
	if err != nil {
		return nil, err
	}
	was := map[string]string{}
	for _, condition := range nested[[]any](before, "status", "conditions") {
		of, _ := condition.(map[string]any)
		was[nested[string](of, "type")] = nested[string](of, "status")
	}
	for _, condition := range nested[[]any](after, "status", "conditions") {
		of, _ := condition.(map[string]any)
		kind, status, reason := nested[string](of, "type"), nested[string](of, "status"), nested[string](of, "reason")
		old, existed := was[kind]
		isShown := existed && old != status || !existed && isWrong(kind, status)
		if !isShown || c.Object.Resource == "pods" && !slices.Contains(podConditions[existed], kind) {
			continue
		}
		what := kind + ": "
		if existed {
			what += old + " → "
		}
		what += status
		if reason != "" {
			what += " (" + reason + ")"
		}
		found = append(found, what)
	}
	return found, nil
}

// podConditions are the conditions of Pods that tell something, of those that existed and of new ones. The others go
// with them.
var podConditions = map[bool][]string{
	true: {"Ready", "PodScheduled", "DisruptionTarget"}, false: {"PodScheduled", "DisruptionTarget"},
}

// negative are the conditions that say that something is wrong, or out of the ordinary, by True. Others do by False.
var negative = regexp.MustCompile(
	`Fail|Pressure$|Unavailable$|^(Degraded|DisruptionTarget|ScaledToZero|ScalingLimited|Stalled|Suspended|Terminating)$`)

// isWrong reports whether a condition that is new says that something is wrong.
func isWrong(kind, status string) bool { return (status == "True") == negative.MatchString(kind) }

// mayBeWrong reports whether a changed field can be of a condition that is shown: the change is worth a request.
func mayBeWrong(c *Change, f FieldChange) bool {
	kind := conditionPath.FindStringSubmatch(f.Path)[1]
	isTransition := strings.HasSuffix(f.Path, ".status")
	return kind == "" || c.Object.Resource != "pods" || slices.Contains(podConditions[isTransition], kind)
}
