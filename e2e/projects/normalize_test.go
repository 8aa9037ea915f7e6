package projects

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// changing are the parts of a text that differ between servers and between runs.
var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	// Ages in tables, and the spaces after them.
	{regexp.MustCompile(`\b\d+m?(\d+)?s\b`), "AGE"},
	{regexp.MustCompile(` {2,}`), "  "},
}

var (
	causes    = regexp.MustCompile(`(?m) is invalid: \[(.*)\]$`)
	nextCause = regexp.MustCompile(`, (\.?(?:spec|metadata|status|<nil>))`)
)

// normalize makes equal what may differ, in objects as JSON and in text.
func normalize(out []byte) string {
	var object map[string]any
	if json.Unmarshal(out, &object) == nil {
		normalizeObjects(object)
		normalized, err := json.MarshalIndent(object, "", " ")
		if err != nil {
			return err.Error()
		}
		return string(normalized)
	}
	text := string(out)
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.with)
	}
	// Upstream gives the causes of a refusal in a random order, that of a map.
	return causes.ReplaceAllStringFunc(text, func(all string) string {
		list := causes.FindStringSubmatch(all)[1]
		lines := strings.Split(nextCause.ReplaceAllString(list, "\n\t$1"), "\n\t")
		slices.Sort(lines)
		return " is invalid: [" + strings.Join(lines, "\n\t") + "]"
	})
}

// normalizeObjects replaces in value, a part of an object, what the server has set, and orders
// what has a random order.
func normalizeObjects(value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			normalizeObjects(item)
		}
	case map[string]any:
		for _, key := range []string{"uid", "resourceVersion", "creationTimestamp", "lastTransitionTime", "time"} {
			if _, ok := v[key].(string); ok {
				v[key] = strings.ToUpper(key)
			}
		}
		// A server names its own changes after itself.
		if v["manager"] == "byre" {
			v["manager"] = "kube-apiserver"
		}
		for _, item := range v {
			normalizeObjects(item)
		}
		// The order of the conditions is random, as are the seconds of their changes.
		for _, key := range []string{"conditions", "managedFields"} {
			if list, ok := v[key].([]any); ok {
				slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			}
		}
	}
}
