package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// forked is a server with a past, of which forks are made.
type forked struct {
	*testing.T
	dir, endpoint, encryption string
	server                    *serverProcess
	config                    *rest.Config
	client                    kubernetes.Interface
	// revision and time are those of the moment, and objects are what there was.
	revision, time string
	objects        map[string]map[string]any
}

// newForked fills a server and notes a moment, after which it changes things.
func newForked(t *testing.T, flags ...string) *forked {
	t.Helper()
	f := &forked{T: t, dir: t.TempDir()}
	f.endpoint = "sqlite://" + filepath.Join(f.dir, "byre.db")
	if len(flags) > 0 {
		f.endpoint = flags[1]
	}
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	f.encryption = "--encryption-provider-config=" + file
	if err := os.WriteFile(file, []byte(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"EncryptionConfiguration","resources":[
		{"resources":["secrets"],"providers":[{"aescbc":{"keys":[{"name":"key1","secret":"`+base64.StdEncoding.EncodeToString([]byte("0123456789abcdef"))+`"}]}}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f.server = startServer(t, f.dir, append(flags, f.encryption, "--controllers=")...)
	f.config = f.server.config(t)
	f.client = kubernetes.NewForConfigOrDie(f.config)
	maps := f.client.CoreV1().ConfigMaps("default")
	for _, name := range []string{"changed", "deleted"} {
		_, err := maps.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "then"}},
			metav1.CreateOptions{})
		f.must(err)
	}
	_, err := f.client.CoreV1().Secrets("default").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sealed"}, StringData: map[string]string{"a": "then"}},
		metav1.CreateOptions{})
	f.must(err)
	f.registerHooks()
	_, err = clientset.NewForConfigOrDie(f.config).ApiregistrationV1().APIServices().Create(t.Context(),
		&apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1.widgets.example"},
			Spec: apiregistrationv1.APIServiceSpec{Group: "widgets.example", Version: "v1", GroupPriorityMinimum: 1,
				VersionPriority:       1,
				InsecureSkipTLSVerify: true,
				Service:               &apiregistrationv1.ServiceReference{Namespace: "default", Name: "kubernetes"}},
		}, metav1.CreateOptions{})
	f.must(err)
	_, err = maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "last"}},
		metav1.CreateOptions{})
	f.must(err)
	storetest.Eventually(t, "a moment at which the server itself creates nothing", func() bool {
		f.revision = f.last()
		f.objects, f.time = f.list(f.config), time.Now().UTC().Format(time.RFC3339Nano)
		return f.objects["services/default/kubernetes"] != nil && f.last() == f.revision &&
			f.objects["configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking"] != nil
	})

	_, err = maps.Update(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "changed"}, Data: map[string]string{"a": "now"}},
		metav1.UpdateOptions{})
	f.must(err)
	f.must(maps.Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
	_, err = maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "later"}},
		metav1.CreateOptions{})
	f.must(err)
	return f
}

func (f *forked) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// registerHooks registers webhooks for the creation of Services, which nobody serves.
func (f *forked) registerHooks() {
	f.Helper()
	url, fail, none := "https://127.0.0.1:1/", registrationv1.Fail, registrationv1.SideEffectClassNone
	rules := []registrationv1.RuleWithOperations{{
		Operations: []registrationv1.OperationType{registrationv1.Create},
		Rule: registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
			Resources: []string{"services"}},
	}}
	meta, at, versions := metav1.ObjectMeta{Name: "hook"}, registrationv1.WebhookClientConfig{URL: &url}, []string{"v1"}
	hooks := f.client.AdmissionregistrationV1()
	_, err := hooks.ValidatingWebhookConfigurations().Create(f.Context(),
		&registrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []registrationv1.ValidatingWebhook{
			{Name: "validating.example.com", ClientConfig: at, FailurePolicy: &fail, SideEffects: &none,
				AdmissionReviewVersions: versions, Rules: rules},
		}}, metav1.CreateOptions{})
	f.must(err)
	_, err = hooks.MutatingWebhookConfigurations().Create(f.Context(),
		&registrationv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []registrationv1.MutatingWebhook{
			{Name: "mutating.example.com", ClientConfig: at, FailurePolicy: &fail, SideEffects: &none,
				AdmissionReviewVersions: versions, Rules: rules},
		}}, metav1.CreateOptions{})
	f.must(err)
}

// list returns the objects of some resources, without those that a fork has of its own.
func (f *forked) list(config *rest.Config) map[string]map[string]any {
	f.Helper()
	objects, client := map[string]map[string]any{}, dynamic.NewForConfigOrDie(config)
	for _, gvr := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "secrets"},
		{Version: "v1", Resource: "namespaces"},
		{Version: "v1", Resource: "services"}, {Version: "v1", Resource: "serviceaccounts"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
	} {
		list, err := client.Resource(gvr).List(f.Context(), metav1.ListOptions{})
		f.must(err)
		for _, item := range list.Items {
			if item.GetName() == "kube-system" {
				item.SetUID("")
			}
			objects[gvr.Resource+"/"+item.GetNamespace()+"/"+item.GetName()] = item.Object
		}
	}
	delete(objects, "configmaps/kube-system/extension-apiserver-authentication")
	delete(objects, "configmaps/kube-system/byre-apiserver-hosts")
	return objects
}

// last is the last revision of the server.
func (f *forked) last() string {
	f.Helper()
	list, err := f.client.CoreV1().Namespaces().List(f.Context(), metav1.ListOptions{})
	f.must(err)
	return list.ResourceVersion
}

func (f *forked) clusterID(client kubernetes.Interface) string {
	f.Helper()
	namespace, err := client.CoreV1().Namespaces().Get(f.Context(), "kube-system", metav1.GetOptions{})
	f.must(err)
	return string(namespace.UID)
}

// A fork has the objects of a moment, also those that were changed and deleted since, and nothing else
// of the cluster; it acts by itself only once it is adopted.
func TestFork_IsAnotherClusterWithTheObjectsOfAMoment(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		from, to string
		// used says that the server of the source runs meanwhile.
		used bool
	}{{"sqlite", "postgres", false}, {"postgres", "sqlite", true}} {
		t.Run(test.from+" to "+test.to, func(t *testing.T) {
			t.Parallel()
			f := newForked(t, databases()[test.from](t)...)
			command := []string{"fork", "--data-dir", f.dir}
			if test.from == "postgres" {
				command = []string{"fork", "--endpoint", f.reader()}
			}
			dir, flags := filepath.Join(t.TempDir(), "new"), databases()[test.to](t)
			to := dir
			if test.to == "postgres" {
				to = flags[1]
			}
			command = append(command, "--to", to, "--at")
			if test.used {
				if out, _ := succeed(t, append(command, f.revision)...); !strings.Contains(out,
					" objects of revision "+f.revision+", ") {
					t.Errorf("the command says %q", out)
				}
			} else {
				f.server.stop(t)
				was := f.content()
				succeed(t, append(command, f.time)...)
				if is := f.content(); is != was {
					t.Errorf("the source was changed: %s, %s", was, is)
				}
			}
			if test.to == "postgres" {
				f.expectOwnDirectory(to)
			}
			f.expectFork(dir, flags...)
		})
	}
}

// TestFork_RefusesWhatItCanNotMake: it leaves no directory behind, and no database is filled twice.
func TestFork_RefusesWhatItCanNotMake(t *testing.T) {
	t.Parallel()
	f := newForked(t)
	f.expectErrors()
	dsn := pgtest.DSN(t)
	succeed(t, "fork", "--data-dir", f.dir, "--to", dsn)
	expectFailure(t, "holds data", "fork", "--data-dir", f.dir, "--to", dsn)
}

// expectOwnDirectory expects that a fork is not served with the keys of the source.
func (f *forked) expectOwnDirectory(dsn string) {
	f.Helper()
	if p := command(f.T, f.dir, serveArgs(f.dir, "--endpoint", dsn)...); p.wait(f.T) != 1 ||
		!strings.Contains(p.log.String(), "this is a fork of: serve the fork with a --data-dir of its own") {
		f.Errorf("with the keys of the source:\n%s", p.log)
	}
}

// reader returns the endpoint of the database for a role of its own that can only read.
func (f *forked) reader() string {
	f.Helper()
	admin, err := pgx.Connect(f.Context(), f.endpoint)
	f.must(err)
	role := "reader_of_" + admin.Config().Database
	f.Cleanup(func() {
		if _, err := admin.Exec(context.Background(),
			strings.ReplaceAll(`DROP OWNED BY $r; DROP ROLE $r`, "$r", role)); err != nil {
			f.Error(err)
		}
		admin.Close(context.Background())
	})
	_, err = admin.Exec(f.Context(),
		strings.ReplaceAll(
			`CREATE ROLE $r LOGIN; GRANT USAGE ON SCHEMA public TO $r; GRANT SELECT ON ALL TABLES IN SCHEMA public TO $r`, "$r",
			role))
	f.must(err)
	return strings.Replace(f.endpoint, "postgres://byre@", "postgres://"+role+"@", 1)
}

// content describes all that a database holds whose server is stopped: the revision, the number of the
// rows and their sums, and the hash of a file.
func (f *forked) content() string {
	f.Helper()
	if path, isFile := strings.CutPrefix(f.endpoint, "sqlite://"); isFile {
		content, err := os.ReadFile(path)
		f.must(err)
		return fmt.Sprintf("%x", sha256.Sum256(content))
	}
	digest, header := digestOf(f.T, f.endpoint)
	return fmt.Sprintf("%s, %+v", digest, header)
}

// expectErrors expects one line of error for what no fork is made of, and nothing else.
func (f *forked) expectErrors() {
	f.Helper()
	to := filepath.Join(f.TempDir(), "none")
	for want, args := range map[string][]string{
		"2001-01-01T00:00:00Z is not within the history, which reaches from 2": {"--at", "2001-01-01T00:00:00Z", "--to", to},
		"revision 987654321 is not within the history":                         {"--at", "987654321", "--to", to},
		`--at: "soon" is neither a revision`:                                   {"--at", "soon", "--to", to},
		"has the keys of another cluster in pki/: name an empty directory":     {"--to", f.dir},
		"--to must name": {"--to", ""},
		"in use": {"--to", "sqlite://" + f.dir + "/byre.db", "--endpoint",
			sqliteWith(f.T, storetest.RandomRows(f.T, rand.New(rand.NewPCG(41, 41))))},
		"--database-schema needs P": {"--to", to, "--to-schema", "s"},
	} {
		expectFailure(f.T, want, append([]string{"fork", "--data-dir", f.dir}, args...)...)
	}
	if _, err := os.Stat(to); err == nil {
		f.Errorf("%s was made", to)
	}
}

// expectFork starts a server of a fork, and then again with --adopt.
func (f *forked) expectFork(dir string, flags ...string) {
	f.Helper()
	flags = append(flags, f.encryption, "--with-controller-manager")
	server := startServer(f.T, dir, flags...)
	config := server.config(f.T)
	client := kubernetes.NewForConfigOrDie(config)
	labels := map[string]string{"app": "web"}
	_, err := client.AppsV1().Deployments("default").Create(f.Context(),
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}},
		}}, metav1.CreateOptions{})
	f.must(err)

	objects := f.list(config)
	for name, want := range f.objects {
		if !reflect.DeepEqual(objects[name], want) {
			f.Errorf("%s is %v, want %v", name, objects[name], want)
		}
	}
	for name := range objects {
		if f.objects[name] == nil {
			f.Errorf("the fork has %s", name)
		}
	}
	if id := f.clusterID(client); id == "" || id == f.idOfSource() {
		f.Errorf("the cluster ID is %q", id)
	}
	old := rest.CopyConfig(f.config)
	old.Host, old.Insecure, old.CAData = config.Host, true, nil
	if _, err := kubernetes.NewForConfigOrDie(old).CoreV1().ConfigMaps("default").List(f.Context(),
		metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		f.Errorf("the administrator of the source: %v", err)
	}
	f.expectInert(server, client)
	status := append([]string{"status", "--data-dir", dir}, flags[:len(flags)-2]...)
	const want = "FORK         of revision "
	if _, text, _ := call(status...); !strings.Contains(text, want) ||
		!strings.Contains(server.log.String(), "THIS IS A FORK, of revision ") {
		f.Errorf("status:\n%s", text)
	}
	server.stop(f.T)
	if _, text, _ := call(status...); !strings.Contains(text, want) {
		f.Errorf("status of a stopped server:\n%s", text)
	}

	server = startServer(f.T, dir, append(flags, "--adopt")...)
	client = kubernetes.NewForConfigOrDie(server.config(f.T))
	f.expectAlive(client)
	server.stop(f.T)
	server = startServer(f.T, dir, flags...)
	if _, text, _ := call(status...); strings.Contains(text, "FORK") || strings.Contains(server.log.String(), "FORK") {
		f.Errorf("after the adoption:\n%s", text)
	}
	f.expectAlive(kubernetes.NewForConfigOrDie(server.config(f.T)))
	server.stop(f.T)
}

// idOfSource reads the database, as its server may be stopped.
func (f *forked) idOfSource() (id string) {
	f.Helper()
	f.must(readDatabase(f.Context(), f.endpoint, func(s sqlstore.Snapshot) (err error) {
		id, err = uidOf(s.Objects, kubeSystem)
		return err
	}))
	return id
}

var service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
	Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}

func (f *forked) expectInert(server *serverProcess, client kubernetes.Interface) {
	f.Helper()
	_, err := client.CoreV1().Services("default").Create(f.Context(), service, metav1.CreateOptions{})
	f.must(err)
	const refusal = "this is a fork, which connects to no node, Pod or Service"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.20"}}}}
	_, err = client.CoreV1().Nodes().Create(f.Context(), node, metav1.CreateOptions{})
	f.must(err)
	// The first one goes to its kubelet, the second, as those to Pods and Services, to any port.
	for _, path := range []string{"/api/v1/nodes/n/proxy/healthz", "/api/v1/nodes/n:1/proxy/healthz"} {
		if status, body := server.mustGet(f.T, path); status < 500 || !strings.Contains(body, refusal) {
			f.Errorf("%s: %d, %s", path, status, body)
		}
	}
	services := clientset.NewForConfigOrDie(server.config(f.T)).ApiregistrationV1().APIServices()
	storetest.EventuallyDone(f, "the aggregated API server is not reached", func(ctx context.Context) (bool, error) {
		aggregated, err := services.Get(ctx, "v1.widgets.example", metav1.GetOptions{})
		return err == nil && strings.Contains(fmt.Sprint(aggregated.Status.Conditions), refusal), err
	})
	// The controllers of the test server would have acted by now.
	if sets, err := client.AppsV1().ReplicaSets("default").List(f.Context(), metav1.ListOptions{}); err != nil ||
		len(sets.Items) > 0 {
		f.Errorf("a controller has made %v, %v", sets.Items, err)
	}
	f.must(client.CoreV1().Services("default").Delete(f.Context(), "web", metav1.DeleteOptions{}))
}

func (f *forked) expectAlive(client kubernetes.Interface) {
	f.Helper()
	if _, err := client.CoreV1().Services("default").Create(f.Context(), service, metav1.CreateOptions{}); err == nil ||
		!strings.Contains(err.Error(), "failed calling webhook") {
		f.Errorf("a Service that a webhook must see: %v", err)
	}
	storetest.EventuallyDone(f, "a ReplicaSet", func(ctx context.Context) (bool, error) {
		sets, err := client.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
		return err == nil && len(sets.Items) == 1, err
	})
}

// A fork has its own namespace kube-system, and what refers to it refers to the new one. What tells of
// the servers of the cluster is not in it, and what expires has as long left as at the moment.
func TestFork_LeavesOutWhatIsOfTheServers(t *testing.T) {
	t.Parallel()
	const uid = "11111111-2222-3333-4444-555555555555"
	then := time.Now().Add(-time.Hour).UTC().Truncate(time.Microsecond)
	row := func(group, resource, namespace, name, value string) *sqlstore.ObjectRow {
		return &sqlstore.ObjectRow{Time: then,
			Record: sqlstore.Record{Key: sqlstore.Key{Group: group, Resource: resource, Namespace: namespace, Name: name},
				Created: 1, Revision: 1, Value: []byte(value)}}
	}
	system := row("", "namespaces", "", "kube-system", `{"metadata":{"uid":"`+uid+`"}}`)
	system.UID = uid
	event := row("", "events", "default", "e", `{}`)
	event.Expires = then.Add(time.Minute)
	rows := []*sqlstore.ObjectRow{
		system, event,
		row("", "configmaps", "default", "owned", `{"metadata":{"ownerReferences":[{"uid":"`+uid+`"}]}}`),
		row("", "configmaps", "kube-system", "extension-apiserver-authentication", `{}`),
		row("", "configmaps", "kube-system", "byre-apiserver-hosts", `{}`),
		row("", "configmaps", "kube-system", "byre-node-credentials", `{}`),
		row("", "apiserveripinfo", "", "192.0.2.1", `{}`),
		row("coordination.k8s.io", "leases", "kube-system", "apiserver-abc", `{}`),
		row("coordination.k8s.io", "leases", "kube-node-lease", "node", `{}`),
		row("byre", "trusts", "", "trust", `{"kind":"Trust"}`),
		row("byre", "trusts", "", "source", `{"kind":"Trust"}`),
		row("byre", "foundations", "", "fork", `{}`),
	}
	source := sqlstore.Snapshot{Header: sqlstore.Header{Revision: 1, Compacted: 1, CompleteAfter: 1, Epoch: "e", Time: then,
		ObjectCount: int64(len(rows))}}
	source.Objects = func(yield func(*sqlstore.ObjectRow, error) bool) {
		for _, r := range rows {
			if !yield(r, nil) {
				return
			}
		}
	}
	source.Changes = func(func(*sqlstore.ChangeRow, error) bool) {}
	forkOf := func() (map[string]*sqlstore.ObjectRow, sqlstore.Snapshot) {
		t.Helper()
		s := asFork(source, sqlstore.Fork{Revision: 1, Time: then}, bumpRevision, time.Now())
		s = backup.Restored(s, bumpRevision, "f", time.Now())
		held := map[string]*sqlstore.ObjectRow{}
		for r, err := range s.Objects {
			if err != nil {
				t.Fatal(err)
			}
			held[r.Resource+" "+r.Name] = r
		}
		if _, err := backup.DigestOf(s); err != nil {
			t.Error(err)
		}
		return held, s
	}
	held, s := forkOf()
	if s.Epoch == "e" || s.Compacted != s.Revision || len(held) != 6 {
		t.Errorf("the fork is %+v, %d objects", s.Header, len(held))
	}
	is := held["namespaces kube-system"]
	if is.UID == uid || string(is.Value) != `{"metadata":{"uid":"`+is.UID+`"}}` ||
		!strings.Contains(string(held["configmaps owned"].Value), is.UID) || system.UID != uid {
		t.Errorf("kube-system is %+v, its dependent %s", is, held["configmaps owned"].Value)
	}
	if left := time.Until(held["events e"].Expires); left < 0 || left > time.Minute {
		t.Errorf("the Event expires in %s", left)
	}
	for _, name := range []string{"leases node", "trusts source", "foundations fork"} {
		if held[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
	system.Value = []byte(`"encrypted"`)
	if held, _ := forkOf(); held["namespaces kube-system"] != nil {
		t.Error("an encrypted kube-system, whose UID can't be replaced, is in the fork")
	}
	rows = nil
	s = asFork(backup.NotEmpty(source), sqlstore.Fork{Revision: 1, Time: then}, bumpRevision, time.Now())
	s = backup.Restored(s, bumpRevision, "f", time.Now())
	if _, err := backup.DigestOf(s); err == nil || !strings.Contains(err.Error(), "there are no objects") {
		t.Errorf("of nothing: %v", err)
	}
}
