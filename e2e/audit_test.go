package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// auditedSecret is the value of a Secret whose writes and reads are audited.
const auditedSecret = "what-the-log-must-not-have"

// testAudit sends a request for each rule of the audit policy, and looks for the events in
// the log, at the audit webhook, and in the database.
func testAudit(t *testing.T, site *site, s *servers.Server, db database) {
	const ns = "audited"
	token := doAudited(t, s, ns)
	if db.name != "stock" {
		rows, err := client(t, s).CoreV1().RESTClient().Post().AbsPath("/apis/sql.byre.dev/v1/queries").
			Body([]byte(`{"kind":"Query","apiVersion":"sql.byre.dev/v1","spec":{"sql":"SELECT object FROM secrets WHERE name = 'hidden'"}}`)).
			SetHeader("Content-Type", "application/json").DoRaw(t.Context())
		if err != nil || !strings.Contains(string(rows), "d2hhdC10aGUtbG9n") {
			t.Errorf("the Secret by SQL: %s, %v", rows, err)
		}
	}

	var events []auditv1.Event
	storetest.EventuallySucceeds(t, "the audit log", func() error {
		events = slices.DeleteFunc(readAuditLog(t, site), func(e auditv1.Event) bool {
			return e.ObjectRef == nil || e.ObjectRef.Namespace != ns || isOfController(e)
		})
		if len(events) == 0 || events[len(events)-1].Verb != "delete" ||
			events[len(events)-1].Stage != auditv1.StageResponseComplete {
			return errors.New("the last request is not in it")
		}
		return nil
	})
	want := []string{
		"alice RequestResponse RequestReceived create configmaps 0",
		"alice RequestResponse ResponseComplete create configmaps 403 response",
		"admin RequestResponse RequestReceived create configmaps 0",
		"admin RequestResponse ResponseComplete create configmaps 201 request response",
		"admin Request RequestReceived get configmaps 0",
		"admin Request ResponseComplete get configmaps 200",
		"admin Request RequestReceived watch configmaps 0",
		"admin Request ResponseStarted watch configmaps 200",
		"admin Request ResponseComplete watch configmaps 200",
		"admin Metadata ResponseComplete create secrets 201",
		"admin Metadata ResponseComplete get secrets 200",
		"admin RequestResponse RequestReceived create serviceaccounts 0",
		"admin RequestResponse ResponseComplete create serviceaccounts 201 request response",
		"admin Metadata ResponseComplete create serviceaccounts/token 201",
		"admin RequestResponse RequestReceived create configmaps 0", // not yet bob's
		"admin for bob RequestResponse ResponseComplete create configmaps 403 response",
		"admin RequestResponse RequestReceived delete configmaps 0",
		"admin RequestResponse ResponseComplete delete configmaps 200 request response",
	}
	var got []string
	for _, e := range events {
		got = append(got, describe(e))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	log := auditLogText(t, site)
	for what, text := range map[string]string{"a Secret": auditedSecret, "an issued token": token,
		"a Secret in base64": "d2hhdC10aGUtbG9n", "a credential": servers.AdminToken, "managed fields": "managedFields",
		"a path of level None": `"requestURI":"/readyz`, "a user of level None": `"username":"system:apiserver"`} {
		if strings.Contains(log, text) {
			t.Errorf("%s is in the audit log", what)
		}
	}
	checkAuditWebhook(t, site, events)
	if db.name != "stock" {
		checkAuditIDs(t, db, ns, events)
	}
}

// doAudited makes the requests; it returns the token that it asked for.
func doAudited(t *testing.T, s *servers.Server, ns string) string {
	t.Helper()
	c := client(t, s)
	createNamespace(t, c, ns)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "seen"}, Data: map[string]string{"a": "b"}}
	if _, err := clientFor(t, s.Config(servers.AliceToken)).CoreV1().ConfigMaps(ns).Create(t.Context(), config,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a create by alice, who may not: %v", err)
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.CoreV1().ConfigMaps(ns).Create(t.Context(), config, metav1.CreateOptions{})
	must(err)
	_, err = c.CoreV1().ConfigMaps(ns).Get(t.Context(), "seen", metav1.GetOptions{})
	must(err)
	second := int64(1)
	w, err := c.CoreV1().ConfigMaps(ns).Watch(t.Context(),
		metav1.ListOptions{TimeoutSeconds: &second, FieldSelector: "metadata.name=seen"})
	must(err)
	for range w.ResultChan() {
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"},
		StringData: map[string]string{"a": auditedSecret}}
	_, err = c.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{})
	must(err)
	_, err = c.CoreV1().Secrets(ns).Get(t.Context(), "hidden", metav1.GetOptions{})
	must(err)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "teller"}}
	_, err = c.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{})
	must(err)
	token, stderr, err := kubectl(t, kubeconfig(t, s.URL, s.CAFile, tokenUser(servers.AdminToken)), "create", "token",
		"teller", "-n", ns)
	if err != nil {
		t.Fatal(stderr)
	}
	bob := s.Config(servers.AdminToken)
	bob.Impersonate = rest.ImpersonationConfig{UserName: "bob"}
	if _, err := clientFor(t, bob).CoreV1().ConfigMaps(ns).Create(t.Context(), config,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a create by bob, who may not: %v", err)
	}
	must(c.CoreV1().ConfigMaps(ns).Delete(t.Context(), "seen", metav1.DeleteOptions{}))
	return strings.TrimSpace(token)
}

// isOfController reports whether the request is one of the controllers that fill a new namespace.
func isOfController(e auditv1.Event) bool {
	return strings.HasPrefix(e.User.Username, "system:serviceaccount:kube-system:")
}

func describe(e auditv1.Event) string {
	user, resource, code := e.User.Username, e.ObjectRef.Resource, int32(0)
	if e.ImpersonatedUser != nil {
		user += " for " + e.ImpersonatedUser.Username
	}
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	if e.ResponseStatus != nil {
		code = e.ResponseStatus.Code
	}
	text := fmt.Sprintf("%s %s %s %s %s %d", user, e.Level, e.Stage, e.Verb, resource, code)
	if e.RequestObject != nil {
		text += " request"
	}
	if e.ResponseObject != nil {
		text += " response"
	}
	return text
}

// checkAuditWebhook checks that the webhook got the same events, in batches.
func checkAuditWebhook(t *testing.T, site *site, events []auditv1.Event) {
	t.Helper()
	storetest.EventuallySucceeds(t, "the audit webhook", func() error {
		sent, most := map[string]bool{}, 0
		for _, batch := range site.hooks.Batches() {
			most = max(most, len(batch))
			for _, e := range batch {
				sent[string(e.AuditID)+string(e.Stage)] = true
			}
		}
		for _, e := range events {
			if !sent[string(e.AuditID)+string(e.Stage)] {
				return fmt.Errorf("%s was not sent", describe(e))
			}
		}
		if most < 2 || most > 100 {
			t.Errorf("the largest batch has %d events", most)
		}
		return nil
	})
}

// checkAuditIDs checks that the database has the writes with the same user and audit ID as
// the log.
func checkAuditIDs(t *testing.T, db database, ns string, events []auditv1.Event) {
	t.Helper()
	logged := map[string]bool{}
	for _, e := range events {
		if e.Stage == auditv1.StageResponseComplete && e.ResponseStatus.Code < 300 &&
			(e.Verb == "create" || e.Verb == "delete") && e.ObjectRef.Subresource == "" {
			logged[strings.Join([]string{e.User.Username, e.Verb, e.ObjectRef.Resource, string(e.AuditID)}, "\t")] = true
		}
	}
	stored := map[string]bool{}
	for _, row := range mustQuery(t, db,
		fmt.Sprintf(
			"SELECT who, verb, resource, audit_id FROM changes WHERE namespace = '%s' AND name IN ('seen', 'hidden', 'teller')",
			ns)) {
		stored[row] = true
	}
	if len(logged) != 4 || !maps.Equal(logged, stored) {
		t.Errorf("the log has %v, the database %v", logged, stored)
	}
}

// testRotation causes more events than one log file may hold, and checks that the rotated
// files have all of them.
func testRotation(t *testing.T, site *site, s *servers.Server) {
	const ns, objects = "rotated", 12
	c := client(t, s)
	createNamespace(t, c, ns)
	large := map[string]string{"large": strings.Repeat("abc ", 30<<10)}
	for i := range objects {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cm-%02d", i)}, Data: large}
		if _, err := c.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	storetest.EventuallySucceeds(t, "the audit log", func() error {
		created := 0
		for _, e := range readAuditLog(t, site) {
			if e.ObjectRef != nil && e.ObjectRef.Namespace == ns && strings.HasPrefix(e.ObjectRef.Name, "cm-") &&
				e.Stage == auditv1.StageResponseComplete {
				created++
			}
		}
		if created != objects {
			return fmt.Errorf("%d of %d writes are in it", created, objects)
		}
		return nil
	})
	files := auditLogs(t, site)
	if len(files) < 3 {
		t.Errorf("nearly three megabytes are in %v", files)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > 1<<20 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has %d bytes, mode %v", file, info.Size(), info.Mode())
		}
	}
}

// auditLogs returns the log's files, oldest first.
func auditLogs(t *testing.T, site *site) []string {
	t.Helper()
	rotated, err := filepath.Glob(filepath.Join(site.dir, "audit-*.log"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(rotated)
	return append(rotated, filepath.Join(site.dir, "audit.log"))
}

func auditLogText(t *testing.T, site *site) string {
	t.Helper()
	var text strings.Builder
	for _, file := range auditLogs(t, site) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(content)
	}
	return text.String()
}

// readAuditLog leaves out a last line that is still being written.
func readAuditLog(t *testing.T, site *site) []auditv1.Event {
	t.Helper()
	var events []auditv1.Event
	lines := bufio.NewReader(strings.NewReader(auditLogText(t, site)))
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return events
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("%v in %.200s", err, line)
		}
		events = append(events, event)
	}
}
