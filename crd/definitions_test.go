package crd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
)

func widget(t *testing.T, name, spec string) string {
	t.Helper()
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":%s}`, name, spec)
}

const widgetPath = "/apis/example.com/v1/namespaces/default/widgets"

// TestDefinition_IsServedUntilItsDeletion: instances are served from the time at which the
// definition is established until it is deleted. The controllers change only its status.
func TestDefinition_IsServedUntilItsDeletion(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		if w := s.do(t, http.MethodGet, widgetPath, ""); w.Code != http.StatusNotFound {
			t.Fatalf("before it is defined: %d %s", w.Code, w.Body)
		}
		crd := s.define(t, widgetDefinition)
		for condition, wanted := range map[apiextensionsv1.CustomResourceDefinitionConditionType]bool{
			apiextensionsv1.NamesAccepted:       true,
			apiextensionsv1.Established:         true,
			apiextensionsv1.NonStructuralSchema: false,
			apiextensionsv1.Terminating:         false,
		} {
			if got := apihelpers.IsCRDConditionTrue(crd, condition); got != wanted {
				t.Errorf("condition %s is %v", condition, got)
			}
		}
		var owned string
		for _, entry := range crd.ManagedFields {
			if entry.Subresource == "" {
				owned += entry.FieldsV1.GetRawString()
			}
		}
		if !strings.Contains(owned, `"f:versions"`) {
			t.Errorf("the creator has lost what it owns to the controllers: %s", owned)
		}
		if crd.Spec.Versions[0].Schema == nil || crd.Annotations["kubectl.kubernetes.io/last-applied-configuration"] != "{}" {
			t.Error("the controllers have changed more than the status")
		}
		if got := crd.Status.StoredVersions; len(got) != 1 || got[0] != "v1" {
			t.Errorf("storedVersions: %v", got)
		}
		for i := range 3 {
			w := s.do(t, http.MethodPost, widgetPath, widget(t, fmt.Sprintf("w%d", i), `{"size":3}`))
			if w.Code != http.StatusCreated {
				t.Fatalf("create: %d %s", w.Code, w.Body)
			}
		}
		events, err := s.dynamic.Resource(widgets).Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()

		definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
		if err := definitions.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.await(t, crd.Name, gone)
		for range events.ResultChan() { // ends when the server ends the watch
		}
		if w := s.do(t, http.MethodGet, widgetPath, ""); w.Code != http.StatusNotFound {
			t.Errorf("after it is gone: %d %s", w.Code, w.Body)
		}
		s.define(t, widgetDefinition)
		list, err := s.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 0 {
			t.Errorf("%d instances have outlived their definition", len(list.Items))
		}
	})
}

func TestDefinition_NamesConflict(t *testing.T) {
	t.Parallel()
	onDatabases(t, testNamesConflict)
}

func testNamesConflict(t *testing.T, s *server) {
	s.define(t, widgetDefinition)
	other := parse(t,
		strings.NewReplacer("widgets", "gadgets", "singular: widget", "singular: gadget").Replace(widgetDefinition))
	definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := definitions.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	crd := s.await(t, other.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd != nil && apihelpers.IsCRDConditionFalse(crd, apiextensionsv1.NamesAccepted)
	})
	condition := apihelpers.FindCRDCondition(crd, apiextensionsv1.NamesAccepted)
	if condition.Reason != "ShortNamesConflict" && condition.Reason != "KindConflict" &&
		condition.Reason != "ListKindConflict" {
		t.Errorf("NamesAccepted: %+v", condition)
	}
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		t.Error("established in spite of its names")
	}
	if w := s.do(t, http.MethodGet, "/apis/example.com/v1/gadgets", ""); w.Code != http.StatusNotFound {
		t.Errorf("served in spite of its names: %d", w.Code)
	}
}

func TestDefinition_ProtectedGroupNeedsApproval(t *testing.T) {
	t.Parallel()
	onDatabases(t, testProtectedGroupNeedsApproval)
}

func testProtectedGroupNeedsApproval(t *testing.T, s *server) {
	crd := parse(t, strings.ReplaceAll(widgetDefinition, "example.com", "example.k8s.io"))
	_, err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "api-approved.kubernetes.io") {
		t.Errorf("unapproved: %v", err)
	}
}

// TestDefinition_DeletionDeletesManyInstances: the deletion of a definition deletes more
// instances than one page has, in several namespaces, and waits for one that has a
// finalizer.
func TestDefinition_DeletionDeletesManyInstances(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes 510 objects")
	}
	const instances = 510
	onDatabases(t, func(t *testing.T, s *server) {
		crd := s.define(t, widgetDefinition)
		var creators errgroup.Group
		creators.SetLimit(32)
		for i := range instances {
			creators.Go(func() error {
				path := fmt.Sprintf("/apis/example.com/v1/namespaces/ns-%d/widgets", i%3)
				if w := s.do(t, http.MethodPost, path,
					widget(t, fmt.Sprintf("w%d", i), `{"size":3}`)); w.Code != http.StatusCreated {
					return fmt.Errorf("create: %d %s", w.Code, w.Body)
				}
				return nil
			})
		}
		if err := creators.Wait(); err != nil {
			t.Fatal(err)
		}
		const kept = "/apis/example.com/v1/namespaces/ns-1/widgets/w1"
		finalizers := func(list string) {
			t.Helper()
			w := s.do(t, http.MethodPatch, kept, `{"metadata":{"finalizers":`+list+`}}`, "Content-Type",
				"application/merge-patch+json")
			if w.Code != http.StatusOK {
				t.Fatalf("finalizers %s: %d %s", list, w.Code, w.Body)
			}
		}
		finalizers(`["example.com/not-done"]`)

		definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
		if err := definitions.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		storetest.EventuallySucceeds(t, "one instance is left", func() error {
			list, err := s.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{})
			if err == nil &&
				(len(list.Items) != 1 || list.Items[0].GetName() != "w1" || list.Items[0].GetDeletionTimestamp() == nil) {
				err = fmt.Errorf("%d are left", len(list.Items))
			}
			return err
		})
		s.await(t, crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
			return crd != nil && apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating)
		})
		if w := s.do(t, http.MethodPost, widgetPath, widget(t, "late", `{"size":3}`)); w.Code != http.StatusForbidden {
			t.Errorf("create while it is terminating: %d %s", w.Code, w.Body)
		}
		finalizers(`null`)
		s.await(t, crd.Name, gone)
	})
}

// TestInstances_OfAnInvalidResourceAreNotFound: a path that no definition can serve is answered as any other.
func TestInstances_OfAnInvalidResourceAreNotFound(t *testing.T) {
	t.Parallel()
	s := start(t, dbtest.SQLite(t))
	for _, path := range []string{"/apis/example.com/v1/%25", "/apis/%25/v1/widgets"} {
		if w := s.do(t, http.MethodGet, path, ""); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

const crontabs = "crontabs.example.com"

// TestDefinition_ChangesOfNoAnswerEndNoWatch: a new description and new certificate
// authorities of the webhook end no watch. The webhook is called by the new authorities, and
// OpenAPI has the new description. Another change of the spec ends the watches.
func TestDefinition_ChangesOfNoAnswerEndNoWatch(t *testing.T) {
	t.Parallel()
	onDatabases(t, testKeptWatches)
}

func testKeptWatches(t *testing.T, s *server) {
	c := newConverter(t)
	s.defineConverted(t, c)
	if w := s.do(t, http.MethodPost, crontabPath("v1"),
		crontab("v1", "a", `{"schedule":"old"}`)); w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	var watches []apiwatch.Interface
	for _, version := range []string{"v1", "v1beta1"} {
		client := s.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: version,
			Resource: "crontabs"}).Namespace("default")
		list, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		events, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		watches = append(watches, events)
	}
	trust := func(authorities []byte) {
		s.change(t, crontabs, func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Conversion.Webhook.ClientConfig.CABundle = authorities
		})
	}
	var right []byte
	s.change(t, crontabs, func(crd *apiextensionsv1.CustomResourceDefinition) {
		right = crd.Spec.Conversion.Webhook.ClientConfig.CABundle
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "what a new description says"
	})
	trust(otherAuthority(t))
	one := crontabPath("v1beta1") + "/a"
	if w := s.do(t, http.MethodGet, one, ""); w.Code != http.StatusInternalServerError ||
		!strings.Contains(w.Body.String(), "certificate") {
		t.Errorf("by authorities of another webhook: %d %s", w.Code, w.Body)
	}
	trust(right)
	if w := s.do(t, http.MethodGet, one, ""); w.Code != http.StatusOK {
		t.Errorf("by the right authorities: %d %s", w.Code, w.Body)
	}
	w := s.do(t, http.MethodPatch, crontabPath("v1")+"/a", `{"spec":{"schedule":"new"}}`, "Content-Type",
		"application/merge-patch+json")
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for i, events := range watches {
		event, open := <-events.ResultChan()
		if !open || event.Type != apiwatch.Modified ||
			!strings.Contains(fmt.Sprint(event.Object.(*unstructured.Unstructured).Object["spec"]), "new") {
			t.Fatalf("watch %d: open is %v, %v", i, open, event)
		}
	}
	s.change(t, crontabs, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Zone",
			Type: "string", JSONPath: ".spec.zone"}}
	})
	for i, events := range watches {
		if event, open := <-events.ResultChan(); open {
			t.Errorf("watch %d after a change of an answer: %v", i, event)
		}
	}
}

// otherAuthority returns the certificate of an authority that has signed nothing, as PEM.
func otherAuthority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "other"}, IsCA: true,
		NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
}

// TestConversion_IsMadeAnewAfterAChangeOfTheSpec: what a webhook has converted is not used
// after the strategy was another one for a while, although the definition is again what it
// was.
func TestConversion_IsMadeAnewAfterAChangeOfTheSpec(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		c := newConverter(t)
		s.defineConverted(t, c)
		if w := s.do(t, http.MethodPost, crontabPath("v1"),
			crontab("v1", "a", `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		reads := map[string]string{
			"GET":          crontabPath("v1beta1") + "/a",
			"GET, decoded": crontabPath("v1beta1") + "/a" + decoded,
			"GET, any":     crontabPath("v1beta1") + "/a?resourceVersion=0",
			"LIST":         crontabPath("v1beta1"),
		}
		for name, path := range reads {
			if w := s.do(t, http.MethodGet, path, ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "* *") {
				t.Fatalf("%s: %d %s", name, w.Code, w.Body)
			}
		}
		change := func(r *apiextensionsv1.ConversionResponse) {
			for i := range r.ConvertedObjects {
				r.ConvertedObjects[i].Object.(*unstructured.Unstructured).Object["spec"] = map[string]any{"cron": "of another mind"}
			}
		}
		c.spoil.Store(&change)
		var webhook *apiextensionsv1.CustomResourceConversion
		s.change(t, crontabs, func(crd *apiextensionsv1.CustomResourceDefinition) {
			webhook, crd.Spec.Conversion = crd.Spec.Conversion,
				&apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
		})
		if w := s.do(t, http.MethodGet, reads["GET"], ""); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		s.change(t, crontabs, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Conversion = webhook })
		for name, path := range reads {
			if w := s.do(t, http.MethodGet, path, ""); w.Code != http.StatusOK ||
				!strings.Contains(w.Body.String(), "of another mind") {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
		}
	})
}

const lastWidget = "last"

// TestDefinition_ChangesUnderLoad changes a definition repeatedly while clients write,
// read, list and watch: no request fails. A watch that ends is continued from its last
// revision; it loses no event and repeats none.
func TestDefinition_ChangesUnderLoad(t *testing.T) {
	t.Parallel()
	onDatabases(t, testDefinitionChangesUnderLoad)
}

func testDefinitionChangesUnderLoad(t *testing.T, s *server) {
	if testing.Short() {
		t.Skip("changes definitions for seconds")
	}
	s.define(t, widgetDefinition)
	ctx, stop := context.WithCancel(t.Context())
	var requests, watches atomic.Int64
	var writers, watcher sync.WaitGroup
	var seen map[string]int
	watcher.Go(func() { seen = s.watchUntilLast(t, &watches) })
	created := make([][]string, 4)
	for worker := range created {
		writers.Go(func() { created[worker] = s.useWidgets(ctx, t, worker, &requests) })
	}
	for i := range 20 {
		before := requests.Load()
		s.change(t, "widgets.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
			properties := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
			size := properties["size"]
			size.Maximum = new(float64(100 + i))
			properties["size"] = size
		})
		storetest.Eventually(t, "requests after a change", func() bool { return requests.Load() > before+20 || t.Failed() })
	}
	stop()
	writers.Wait()
	s.create(t, widget(t, lastWidget, `{"size":3}`))
	watcher.Wait()
	for _, names := range created {
		for _, name := range names {
			if seen[name] != 1 {
				t.Errorf("%s was seen %d times", name, seen[name])
			}
		}
	}
	if watches.Load() < 2 {
		t.Error("no watch has ended: nothing was tested")
	}
	t.Logf("%d requests, %d watches, %d events", requests.Load(), watches.Load(), len(seen))
}

// useWidgets creates and reads widgets until ctx ends, and returns the names of those that
// it created.
func (s *server) useWidgets(ctx context.Context, t *testing.T, worker int, requests *atomic.Int64) []string {
	var created []string
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("w%d-%d", worker, i)
		if w := s.do(t, http.MethodPost, widgetPath, widget(t, name, `{"size":3}`)); w.Code != http.StatusCreated {
			t.Errorf("create: %d %s", w.Code, w.Body)
			return created
		}
		created = append(created, name)
		one := widgetPath + "/" + name
		for _, path := range []string{one, one + decoded, one + "/scale", widgetPath + "?limit=3"} {
			if w := s.do(t, http.MethodGet, path, ""); w.Code != http.StatusOK {
				t.Errorf("GET %s: %d %s", path, w.Code, w.Body)
				return created
			}
		}
		requests.Add(5)
	}
	return created
}

// watchUntilLast counts the events of each created widget, over as many watches as it
// needs.
func (s *server) watchUntilLast(t *testing.T, watches *atomic.Int64) map[string]int {
	seen := map[string]int{}
	client := s.dynamic.Resource(widgets)
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Error(err)
		return seen
	}
	for _, item := range list.Items {
		seen[item.GetName()]++
	}
	from := list.GetResourceVersion()
	for t.Context().Err() == nil {
		watches.Add(1)
		events, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: from})
		if err != nil {
			t.Error(err)
			return seen
		}
		for event := range events.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok || event.Type != apiwatch.Added {
				t.Errorf("event %s: %v", event.Type, event.Object)
				events.Stop()
				return seen
			}
			seen[object.GetName()]++
			if from = object.GetResourceVersion(); object.GetName() == lastWidget {
				events.Stop()
				return seen
			}
		}
	}
	t.Error("the last event did not come")
	return seen
}

// TestDefinition_ManyAtOnce creates many definitions concurrently: each is established, and
// is served as soon as a client sees that.
func TestDefinition_ManyAtOnce(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes twenty definitions")
	}
	onDatabases(t, func(t *testing.T, s *server) {
		for i := range 20 {
			t.Run(fmt.Sprintf("widgets%d", i), func(t *testing.T) {
				t.Parallel()
				crd := parse(t, widgetDefinition)
				crd.Name = fmt.Sprintf("widgets%d.example.com", i)
				crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{
					Plural: fmt.Sprintf("widgets%d", i), Kind: fmt.Sprintf("Widget%d", i),
				}
				s.establish(t, crd)
				path := "/apis/example.com/v1/namespaces/default/" + crd.Spec.Names.Plural
				if w := s.do(t, http.MethodGet, path, ""); w.Code != http.StatusOK {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
	})
}

// change updates the definition with the name. Controllers may update its status meanwhile.
func (s *server) change(
	t *testing.T, name string, change func(*apiextensionsv1.CustomResourceDefinition),
) (updated *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		crd, err := definitions.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(crd)
		updated, err = definitions.Update(t.Context(), crd, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return updated
}

// TestRequest_KeepsItsDefinition removes a version while a request for it is being served: the
// definition that a read began with serves it to its end. A write takes effect by the definition
// that is there when it is committed; there is none for it then.
func TestRequest_KeepsItsDefinition(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		for _, test := range []struct {
			name, method, body string
			header             []string
			want               int
		}{
			{"read", http.MethodGet, "", nil, http.StatusOK},
			{"write", http.MethodPatch, `{"spec":{"image":"i"}}`, []string{"Content-Type", "application/merge-patch+json"},
				http.StatusNotFound},
		} {
			t.Run(test.name, func(t *testing.T) {
				c := newConverter(t)
				s.defineConverted(t, c)
				if w := s.do(t, http.MethodPost, crontabPath("v1"),
					crontab("v1", "a", `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
				// The first conversion drops v1beta1 from the definition.
				var once sync.Once
				drop := func(*apiextensionsv1.ConversionResponse) {
					once.Do(func() {
						s.change(t, "crontabs.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
							crd.Spec.Versions = crd.Spec.Versions[:1]
							crd.Spec.Conversion = nil
						})
					})
				}
				c.spoil.Store(&drop)
				w := s.do(t, test.method, crontabPath("v1beta1")+"/a", test.body, test.header...)
				if w.Code != test.want {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
				if w.Code == http.StatusOK {
					if diff := cmp.Diff(map[string]any{"cron": "* *"}, spec(t, w.Body.Bytes())); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
				}
				if w := s.do(t, http.MethodGet, crontabPath("v1beta1")+"/a", ""); w.Code != http.StatusNotFound {
					t.Errorf("the version that was dropped answers %d", w.Code)
				}
				definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
				if err := definitions.Delete(t.Context(), "crontabs.example.com", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				s.await(t, "crontabs.example.com", gone)
			})
		}
	})
}

// TestEncoding_FollowsTheStoredSchema: the encoding of stored instances changes only with what
// their bytes depend on.
func TestEncoding_FollowsTheStoredSchema(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		c := newConverter(t)
		s.defineConverted(t, c)
		encodingOf := func(name string) string {
			t.Helper()
			if w := s.do(t, http.MethodPost, crontabPath("v1"),
				crontab("v1", name, `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			record, _, err := s.store.Get(t.Context(),
				sqlstore.Key{Group: "example.com", Resource: "crontabs", Owner: sqlstore.Custom, Namespace: "default", Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return record.Encoding
		}
		first := encodingOf("a")
		s.change(t, "crontabs.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
			config := crd.Spec.Conversion.Webhook.ClientConfig
			config.CABundle = append(config.CABundle, '\n')
			crd.Spec.Versions[1].Schema.OpenAPIV3Schema.Description = "not the stored one"
			crd.Spec.Names.ShortNames = []string{"ct"}
		})
		if encoding := encodingOf("b"); encoding != first {
			t.Errorf("the encoding became %s, was %s", encoding, first)
		}
		s.change(t, "crontabs.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
			spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			spec.Properties["user"] = apiextensionsv1.JSONSchemaProps{Type: "string",
				Default: &apiextensionsv1.JSON{Raw: []byte(`"root"`)}}
		})
		if encoding := encodingOf("c"); encoding == first {
			t.Error("the encoding stayed although there is a new default")
		}
	})
}
