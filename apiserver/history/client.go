package history

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"byre/apiserver/storage/moment"
)

// Path is the path of the resource changes; an empty namespace means those of all.
func Path(namespace string) string {
	if namespace == "" {
		return "/apis/" + GroupName + "/v1/changes"
	}
	return "/apis/" + GroupName + "/v1/namespaces/" + namespace + "/changes"
}

// mostPerRequest is how many changes a Search asks for at once.
const mostPerRequest = 500

// Search selects changes for a client of the server.
type Search struct {
	// Namespace is that of the changes; empty means all.
	Namespace string
	// Selector is a field selector of the resource changes.
	Selector fields.Selector
	// Since is the moment after which the changes were made, and Until the one up to which; a zero one sets no bound.
	Since, Until moment.Moment
	// Keep reports whether a change is wanted; nil means that each is.
	Keep func(*Change) bool
	// Limit is how many changes are wanted, and Requests how many requests are made for them; 0 means any number.
	Limit, Requests int
}

// Get sends a GET request and decodes the answer.
type Get func(path string, query url.Values, into any) error

// Newest returns the selected changes, the newest first, and whether there may be more. If the history does not reach
// back to Since, the changes are those that there are, and missing is the server's error. With an error, the changes
// are those that were found before it.
func (s *Search) Newest(get Get) (found []Change, more bool, missing, err error) {
	selector := fields.AndSelectors(s.Selector, fields.OneTermEqualSelector("order", "newest"))
	if !s.Until.IsZero() {
		selector = fields.AndSelectors(selector, fields.OneTermEqualSelector("until", s.Until.Selector()))
	}
	newest := selector.String()
	query := url.Values{"limit": {strconv.Itoa(min(s.Limit+1, mostPerRequest))}, "fieldSelector": {newest}}
	if !s.Since.IsZero() {
		query.Set("fieldSelector", newest+",since="+s.Since.Selector())
	}
	for n := 0; s.Requests == 0 || n < s.Requests; n++ {
		var list ChangeList
		err := get(Path(s.Namespace), query, &list)
		switch {
		case apierrors.IsResourceExpired(err) && !s.Since.IsZero() && missing == nil:
			found, missing, query = nil, err, url.Values{"limit": query["limit"], "fieldSelector": {newest}}
			continue
		case err != nil:
			return found, more, missing, err
		}
		for i := range list.Items {
			c := &list.Items[i]
			switch {
			case missing != nil && s.Since.Covers(c.Revision, c.Time.Time):
				return found, false, missing, nil
			case s.Keep != nil && !s.Keep(c):
				continue
			case len(found) == s.Limit:
				return found, true, missing, nil
			}
			found = append(found, *c)
		}
		if more = list.Continue != ""; !more {
			break
		}
		query.Set("continue", list.Continue)
	}
	return found, more, missing, nil
}

// FullVerb is the verb of the request, with the subresource.
func (c *Change) FullVerb() string { return path.Join(c.Verb, c.Subresource) }

// FullName names the object as kubectl does, such as deployments.apps/web.
func (r *ObjectReference) FullName() string {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}.String() + "/" + r.Name
}

// Decode returns the object before or after a change, with integers as clients of Kubernetes have them. It returns nil
// if there is none.
func Decode(object *runtime.RawExtension) (decoded map[string]any, err error) {
	if object != nil {
		err = utiljson.Unmarshal(object.Raw, &decoded)
	}
	return decoded, err
}

// mostCompared is how many lines of two versions are compared line by line, which takes the product of their numbers.
const mostCompared = 4000

// Diff returns the unified diff of two versions of an object as YAML. A nil version is that of an object that does not
// exist. Without names the diff has no header.
func Diff(before, after map[string]any, nameBefore, nameAfter string) (string, error) {
	var lines [2][]string
	for i, version := range []map[string]any{before, after} {
		if version == nil {
			continue
		}
		text, err := yaml.Marshal(version)
		if err != nil {
			return "", err
		}
		lines[i] = slices.Collect(strings.Lines(string(text)))
	}
	diff := difflib.UnifiedDiff{A: lines[0], FromFile: nameBefore, B: lines[1], ToFile: nameAfter, Context: 3}
	if len(lines[0])+len(lines[1]) > mostCompared {
		return diffAsOne(diff), nil
	}
	return difflib.GetUnifiedDiffString(diff)
}

// diffAsOne returns the difference as one hunk: the lines from the first to the last that differ.
func diffAsOne(diff difflib.UnifiedDiff) string {
	before, after, same := diff.A, diff.B, 0
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	before, after = before[same:], after[same:]
	for len(before) > 0 && len(after) > 0 && before[len(before)-1] == after[len(after)-1] {
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	if len(before)+len(after) == 0 {
		return ""
	}
	var b strings.Builder
	if diff.FromFile != "" || diff.ToFile != "" {
		fmt.Fprintf(&b, "--- %s\n+++ %s\n", diff.FromFile, diff.ToFile)
	}
	fmt.Fprintf(&b, "@@ -%d,%d +%d,%d @@\n", same+1, len(before), same+1, len(after))
	for _, line := range before {
		b.WriteString("-" + line)
	}
	for _, line := range after {
		b.WriteString("+" + line)
	}
	return b.String()
}
