package e2e

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	runtimeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion"
	"sigs.k8s.io/yaml"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

const (
	gadgetNamespace = "gadgets" // the namespace
	gadgets         = 1000
	finalizer       = "gadgets.example.com/finalizer"
)

// TestControllerRuntime_ManagerReconciles runs a controller as people write them, by
// controller-runtime, on 1,000 custom resources of two versions: it keeps a ConfigMap
// for each, reports in their status, and holds them by a finalizer. The server is
// restarted while they are made; the leader hands over to a second manager; then all
// are deleted.
func TestControllerRuntime_ManagerReconciles(t *testing.T) {
	t.Parallel()
	ctrl.SetLogger(logr.Discard())
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testManager(t, openDatabase(t, name))
		})
	}
}

func testManager(t *testing.T, db database) {
	byre := servers.Byre{Dir: filepath.Join(t.TempDir(), "data"), Endpoint: db.endpoint}
	server := start(t, byre)
	var address currentAddress
	access := address.configOf(server)
	c := gadgetClient(t, access)
	createNamespace(t, clientFor(t, access), gadgetNamespace)
	defineGadgets(t, c)

	finalized := &sync.Map{}
	first := startManager(t, access, "first", finalized)
	first.awaitLead(t)
	second := startManager(t, access, "second", finalized)

	each(t, writers, func(ctx context.Context, w int) error {
		for i := w; i < gadgets; i += writers {
			if i == gadgets/2 {
				if err := server.Stop(); err != nil {
					return fmt.Errorf("byre ended with: %w", err)
				}
				server = start(t, byre)
				address.set(server)
			}
			if err := createGadget(ctx, c, i); err != nil {
				return err
			}
		}
		return nil
	})
	awaitGadgets(t, c, func(h *gadgetV1) error {
		if h.Spec.Size != sizeOf(h.Name) || h.Status.By != "first" {
			return fmt.Errorf("%s has size %d and was reconciled by %q", h.Name, h.Spec.Size, h.Status.By)
		}
		return nil
	})
	checkOldGadgets(t, c)

	if err := first.stop(); err != nil {
		t.Errorf("the first manager ended with: %v", err)
	}
	second.awaitLead(t)
	each(t, writers, func(ctx context.Context, w int) error {
		for i := w; i < gadgets; i += 5 * writers {
			patch := runtimeclient.RawPatch("application/merge-patch+json", []byte(`{"spec":{"size":"7777"}}`))
			if err := c.Patch(ctx, &gadgetV1beta1{ObjectMeta: gadgetMeta(i)}, patch); err != nil {
				return err
			}
		}
		return nil
	})
	awaitGadgets(t, c, func(h *gadgetV1) error {
		if (h.Spec.Size == 7777) != (h.Status.By == "second") {
			return fmt.Errorf("%s has size %d and was reconciled by %q", h.Name, h.Spec.Size, h.Status.By)
		}
		return nil
	})

	// On a loaded machine one request ends at its time-out before all are deleted.
	storetest.EventuallySucceeds(t, "every gadget is deleted", func() error {
		return c.DeleteAllOf(t.Context(), &gadgetV1{}, runtimeclient.InNamespace(gadgetNamespace))
	})
	storetest.EventuallySucceeds(t, "everything is gone", func() error {
		rows, err := db.query(
			`SELECT resource, name FROM objects WHERE "group" = 'gadgets.example.com' OR namespace = 'gadgets' AND resource = 'configmaps' AND name LIKE 'gadget-%'`)
		if err == nil && len(rows) > 0 {
			err = fmt.Errorf("%d objects are left, %s among them", len(rows), rows[0])
		}
		return err
	})
	for i := range gadgets {
		if _, ok := finalized.Load(gadgetMeta(i).Name); !ok {
			t.Errorf("%s was not finalized", gadgetMeta(i).Name)
		}
	}
	if err := second.stop(); err != nil {
		t.Errorf("the second manager ended with: %v", err)
	}
}

// currentAddress is the address of a server that is restarted with another port. Its clients
// are configured once and connect to the port of the moment.
type currentAddress struct{ address atomic.Pointer[string] }

func (d *currentAddress) set(s *servers.Server) {
	address := strings.TrimPrefix(s.URL, "https://")
	d.address.Store(&address)
}

// configOf returns the configuration of a client of the server, whose address it sets.
func (d *currentAddress) configOf(s *servers.Server) *rest.Config {
	d.set(s)
	c := s.Config(servers.AdminToken)
	c.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, *d.address.Load())
	}
	return c
}

func gadgetClient(t *testing.T, access *rest.Config) runtimeclient.Client {
	t.Helper()
	s := gadgetScheme()
	if err := apiextensionsv1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	c, err := runtimeclient.New(access, runtimeclient.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// defineGadgets starts the conversion webhook and creates the definition that names it.
func defineGadgets(t *testing.T, c runtimeclient.Client) {
	t.Helper()
	converter, err := newGadgetConverter(c.Scheme())
	if err != nil {
		t.Fatal(err)
	}
	registry := conversion.NewRegistry()
	if err := registry.RegisterConverter(gadgetGroup.WithKind("Gadget").GroupKind(), converter); err != nil {
		t.Fatal(err)
	}
	webhook := httptest.NewTLSServer(conversion.NewWebhookHandler(c.Scheme(), registry))
	t.Cleanup(webhook.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})
	text := fmt.Sprintf(gadgetDefinition, webhook.URL, base64.StdEncoding.EncodeToString(ca))
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), definition); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), definition); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "gadgets can be listed", func() error { return c.List(t.Context(), &oldGadgetList{}) })
}

func gadgetMeta(i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: gadgetNamespace, Name: fmt.Sprintf("gadget-%04d", i)}
}

func sizeOf(gadget string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(gadget, "gadget-"))
	if err != nil {
		return -1
	}
	return n + 1
}

// createGadget creates a gadget in one of the two versions, and tries again while the server
// is being restarted.
func createGadget(ctx context.Context, c runtimeclient.Client, i int) error {
	ctx, cancel := context.WithTimeout(ctx, storetest.Patience)
	defer cancel()
	meta := gadgetMeta(i)
	var object runtimeclient.Object = &gadgetV1{ObjectMeta: meta, Spec: gadgetSpec{Size: sizeOf(meta.Name)}}
	if i%2 == 1 {
		object = &gadgetV1beta1{ObjectMeta: meta, Spec: oldGadgetSpec{Size: strconv.Itoa(sizeOf(meta.Name))}}
	}
	for {
		err := c.Create(ctx, object.DeepCopyObject().(runtimeclient.Object))
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(20 * time.Millisecond): // the server is being restarted
		}
	}
}

// awaitGadgets waits until the status of every gadget is of its last generation, its
// ConfigMap has its size, and ok returns nil for it.
func awaitGadgets(t *testing.T, c runtimeclient.Client, ok func(*gadgetV1) error) {
	t.Helper()
	storetest.EventuallySucceeds(t, "every gadget is reconciled", func() error {
		var all gadgetList
		var children corev1.ConfigMapList
		if err := errors.Join(c.List(t.Context(), &all, runtimeclient.InNamespace(gadgetNamespace)),
			c.List(t.Context(), &children, runtimeclient.InNamespace(gadgetNamespace))); err != nil {
			return err
		}
		if len(all.Items) != gadgets {
			return fmt.Errorf("there are %d gadgets", len(all.Items))
		}
		owned := map[string]corev1.ConfigMap{}
		for _, child := range children.Items {
			owned[child.Name] = child
		}
		for _, h := range all.Items {
			child := owned[h.Name]
			if h.Status.ObservedGeneration != h.Generation || !metav1.IsControlledBy(&child, &h) ||
				child.Data["size"] != strconv.Itoa(h.Spec.Size) {
				return fmt.Errorf("%s of generation %d has the status %+v and the child %v", h.Name, h.Generation, h.Status,
					child.Data)
			}
			if err := ok(&h); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkOldGadgets reads all gadgets in v1beta1, in which none is stored.
func checkOldGadgets(t *testing.T, c runtimeclient.Client) {
	t.Helper()
	var all oldGadgetList
	if err := c.List(t.Context(), &all, runtimeclient.InNamespace(gadgetNamespace)); err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != gadgets {
		t.Errorf("there are %d gadgets in v1beta1", len(all.Items))
	}
	for _, h := range all.Items {
		if h.Spec.Size != strconv.Itoa(sizeOf(h.Name)) || h.Status.By != "first" {
			t.Errorf("%s has size %q in v1beta1, and was reconciled by %q", h.Name, h.Spec.Size, h.Status.By)
		}
	}
}
