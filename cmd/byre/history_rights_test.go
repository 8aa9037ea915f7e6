package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/apiserver/history"
	"byre/sqlstore/storetest"
)

// grants is what users may list in a namespace, or in all if it is empty: users, namespaces and
// resources.
type grants map[string]map[string][]string

// grantAtRandom binds users to the right to list changes, ConfigMaps and Secrets.
func (h *chronicle) grantAtRandom(random *rand.Rand, users, namespaces []string) grants {
	all := make(grants)
	roles := map[string]string{"changes": "byre:history-viewer", "configmaps": "configmaps", "secrets": "secrets"}
	for _, user := range users {
		all[user] = make(map[string][]string)
		for _, namespace := range append([]string{""}, namespaces...) {
			for _, resource := range []string{"changes", "configmaps", "secrets"} {
				if likely := map[bool]float64{true: 0.25, false: 0.5}[namespace == ""]; random.Float64() < likely {
					h.bind(namespace, user, roles[resource])
					all[user][namespace] = append(all[user][namespace], resource)
				}
			}
		}
	}
	return all
}

// in returns what a user may list in a namespace, or in all if it is empty.
func (g grants) in(user, namespace string) []string {
	return append(slices.Clone(g[user][""]), g[user][namespace]...)
}

// where is the condition in SQL for the changes that a user may see.
func (g grants) where(user string) string {
	visible := []string{"1 = 0"}
	for _, namespace := range []string{"", "a", "b", "c"} {
		if !slices.Contains(g.in(user, namespace), "changes") {
			continue
		}
		for _, resource := range g.in(user, namespace) {
			condition := "resource = '" + resource + "'"
			if namespace != "" {
				condition += " AND namespace = '" + namespace + "' AND revision >= (SELECT created_revision FROM objects WHERE resource = 'namespaces' AND name = '" + namespace + "')"
			}
			visible = append(visible, "("+condition+")")
		}
	}
	return "(" + strings.Join(visible, " OR ") + ")"
}

// changeAtRandom creates, updates and deletes objects, and returns the value that each has had, by
// namespace and resource.
func (h *chronicle) changeAtRandom(random *rand.Rand, namespaces []string, times int) map[string][]string {
	h.Helper()
	values := make(map[string][]string)
	for range times {
		namespace, resource := namespaces[random.IntN(len(namespaces))], []string{"configmaps", "secrets"}[random.IntN(2)]
		meta := metav1.ObjectMeta{Name: fmt.Sprint("object", random.IntN(3))}
		value := fmt.Sprintf("canary-%x", random.Uint64())
		var create, update, remove func() error
		switch resource {
		case "configmaps":
			client, object := h.kube.CoreV1().ConfigMaps(namespace), &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"key": value}}
			create = func() error { _, err := client.Create(h.Context(), object, metav1.CreateOptions{}); return err }
			update = func() error { _, err := client.Update(h.Context(), object, metav1.UpdateOptions{}); return err }
			remove = func() error { return client.Delete(h.Context(), meta.Name, metav1.DeleteOptions{}) }
		default:
			// The value is a part of a label: a list shows data of Secrets in base64.
			meta.Labels = map[string]string{"value": value}
			client, object := h.kube.CoreV1().Secrets(namespace), &corev1.Secret{ObjectMeta: meta}
			create = func() error { _, err := client.Create(h.Context(), object, metav1.CreateOptions{}); return err }
			update = func() error { _, err := client.Update(h.Context(), object, metav1.UpdateOptions{}); return err }
			remove = func() error { return client.Delete(h.Context(), meta.Name, metav1.DeleteOptions{}) }
		}
		err := update()
		if apierrors.IsNotFound(err) {
			err = create()
		}
		h.must(err)
		values[namespace+"/"+resource] = append(values[namespace+"/"+resource], value)
		if random.IntN(5) == 0 {
			h.must(remove())
		}
	}
	return values
}

// pages reads a list in pages of some items, and returns the revisions, the one of the list, and all
// that was answered.
func (h *chronicle) pages(user, path string, limit int) (revisions []string, last, text string, status int) {
	h.Helper()
	token := ""
	for {
		status, body := h.as(user, fmt.Sprintf("%s?limit=%d&continue=%s", path, limit, token), "application/json")
		text += body
		if status != http.StatusOK {
			return nil, "", text, status
		}
		var list history.ChangeList
		h.must(json.Unmarshal([]byte(body), &list))
		for i := range list.Items {
			revisions = append(revisions, list.Items[i].Name)
		}
		if last, token = list.ResourceVersion, list.Continue; token == "" {
			return revisions, last, text, status
		}
	}
}

// Users with random rights see in every namespace, and in all, what SQL selects by these rights, and
// no value of another change, whether they list or ask for each revision.
func TestHistory_EqualsSQLForRandomRights(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(25, 1))
			h := newChronicle(t, flags(t)...)
			namespaces, users := []string{"a", "b", "c"}, []string{"u0", "u1", "u2", "u3", "u4", "u5", "u6", "u7"}
			for _, namespace := range namespaces {
				h.makeNamespace(namespace)
			}
			old := h.changeAtRandom(random, namespaces, 40)
			deleteNamespace(t, h.kube, "b")
			h.makeNamespace("b")
			values := h.changeAtRandom(random, namespaces, 60)
			for of, canaries := range old {
				// What was in the namespace before is for those only who may list in all.
				of = strings.Replace(of, "b/", "gone/", 1)
				values[of] = append(values[of], canaries...)
			}
			granted := h.grantAtRandom(random, users, namespaces)
			for user := range granted {
				h.bind("", user, "byre:sql-user")
			}
			h.expectListsOfThePast(random)
			for user := range granted {
				for _, namespace := range []string{"", "a", "b", "c"} {
					h.expectAsSQL(granted, user, namespace, random.IntN(20)+1)
				}
				h.expectNoOthers(granted, user, values)
				h.expectGap(granted, user)
				h.expectQueried(granted, user, values)
			}
		})
	}
}

// expectAsSQL compares a list with SQL. The rights that were just given take a moment.
func (h *chronicle) expectAsSQL(granted grants, user, namespace string, limit int) {
	h.Helper()
	path, condition := allChanges, granted.where(user)
	if namespace != "" {
		path, condition = "/apis/history.byre.dev/v1/namespaces/"+namespace+"/changes", condition+" AND namespace = '"+namespace+"'"
	}
	mayList := slices.Contains(granted.in(user, namespace), "changes")
	difference := ""
	defer func() {
		if h.Failed() {
			h.Log(difference)
		}
	}()
	storetest.Eventually(h.T, user+" sees in "+path+" what SQL says", func() bool {
		got, last, text, status := h.pages(user, path, limit)
		if !mayList {
			difference = fmt.Sprint(status, text)
			return status == http.StatusForbidden
		}
		if status != http.StatusOK {
			return false
		}
		want := rows(h.T, h.endpoint, "SELECT revision FROM changes WHERE resource IN ('configmaps', 'secrets') AND revision <= "+last+" AND "+condition+" ORDER BY revision")
		difference = fmt.Sprintf("%q, want %q", got, want)
		return slices.Equal(got, want)
	})
}

// expectNoOthers expects that a user reads no value of an object that the user may not see, by the
// name of any revision.
func (h *chronicle) expectNoOthers(granted grants, user string, values map[string][]string) {
	h.Helper()
	_, _, text, _ := h.pages(user, allChanges, 0)
	for _, row := range rows(h.T, h.endpoint, "SELECT namespace || '/changes/' || revision FROM changes WHERE namespace IN ('a', 'b', 'c') AND resource IN ('configmaps', 'secrets')") {
		_, body := h.as(user, "/apis/history.byre.dev/v1/namespaces/"+row, "application/json")
		text += body
	}
	for of, canaries := range values {
		namespace, resource, _ := strings.Cut(of, "/")
		rights := granted.in(user, namespace)
		visible := slices.Contains(rights, "changes") && slices.Contains(rights, resource)
		for _, canary := range canaries {
			if strings.Contains(text, canary) != visible {
				h.Errorf("%s reads %s of %s: %v, want %v", user, canary, of, !visible, visible)
			}
		}
	}
}

// expectGap expects an error for a moment before the namespace b was created again, unless the user sees
// what was in the one before: the answer would look as if nothing had been there.
func (h *chronicle) expectGap(granted grants, user string) {
	h.Helper()
	if !slices.Contains(granted.in(user, "b"), "changes") {
		return
	}
	want := http.StatusGone
	if all := granted.in(user, ""); slices.Contains(all, "changes") && slices.Contains(all, "configmaps") {
		want = http.StatusOK
	}
	if status, body := h.as(user, "/apis/history.byre.dev/v1/namespaces/b/changes?fieldSelector=object.resource%3Dconfigmaps,since%3D1", "application/json"); status != want {
		h.Errorf("%s since revision 1: %d, want %d: %s", user, status, want, body)
	}
}

// expectQueried expects that what queries tell a user of the past is what the changes are that the user may
// see.
func (h *chronicle) expectQueried(granted grants, user string, values map[string][]string) {
	h.Helper()
	const these = " WHERE resource IN ('configmaps', 'secrets') AND namespace IN ('a', 'b', 'c')"
	last := h.csv("", "SELECT max(revision) FROM changes"+these)[0]
	want := rows(h.T, h.endpoint, "SELECT revision FROM changes"+these+" AND "+granted.where(user)+" ORDER BY revision")
	if got := slices.DeleteFunc(h.csv(user, "SELECT revision FROM changes"+these+" ORDER BY 1"), func(row string) bool { return row == "" }); !slices.Equal(got, want) {
		h.Errorf("%s asks for changes: %q, want %q", user, got, want)
	}
	var text strings.Builder
	for _, statement := range []string{
		"SELECT before, after FROM changes", "SELECT old, new FROM field_changes", "SELECT c.object, s.object FROM configmaps(" + last + ") c FULL JOIN secrets(" + last + ") s ON false",
	} {
		text.WriteString(strings.Join(h.csv(user, statement), "\n"))
	}
	for of, canaries := range values {
		namespace, resource, _ := strings.Cut(of, "/")
		rights := granted.in(user, namespace)
		if slices.Contains(rights, "changes") && slices.Contains(rights, resource) {
			continue
		}
		for _, canary := range canaries {
			if strings.Contains(text.String(), canary) {
				h.Errorf("%s reads %s of %s in SQL", user, canary, of)
			}
		}
	}
}

// expectListsOfThePast expects that a table shows of a moment what a list at its revision has.
func (h *chronicle) expectListsOfThePast(random *rand.Rand) {
	h.Helper()
	revisions := h.csv("", "SELECT revision FROM changes WHERE resource = 'configmaps'")
	for range 10 {
		revision := revisions[random.IntN(len(revisions))]
		list, err := h.kube.CoreV1().ConfigMaps("").List(h.Context(), metav1.ListOptions{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		h.must(err)
		var want []string
		for _, item := range list.Items {
			want = append(want, item.Namespace+","+item.Name+","+item.ResourceVersion)
		}
		for _, statement := range []string{
			"SELECT namespace, name, revision FROM configmaps(" + revision + ") ORDER BY 1, 2",
			"SELECT c.namespace, c.name, c.revision FROM (SELECT '" + revision + "' AS r) JOIN configmaps(r) c ORDER BY 1, 2",
			"SELECT namespace, name, revision FROM configmaps_history h WHERE revision <= " + revision + " AND coalesce((SELECT min(c.revision) FROM changes c WHERE c.replaces = h.revision AND c.resource = 'configmaps'), 1e9) > " + revision + " ORDER BY 1, 2",
		} {
			if got := h.csv("", statement); !slices.Equal(got, want) {
				h.Errorf("%s: %q, want %q", statement, got, want)
			}
		}
	}
}
