package peers

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// Hooks are webhooks of every kind, one path each:
//
//   - /authenticate authenticates HookedToken;
//   - /authorize denies what is in a namespace whose name begins with "vault",
//     allows everybody to get secrets called "shared", and leaves the rest to others;
//   - /audit records the events that it is sent;
//   - /admit/... judges and changes objects (see admit).
type Hooks struct {
	*httptest.Server

	asked   atomic.Int64
	mu      sync.Mutex
	batches [][]auditv1.Event
}

// HookedToken is the bearer token of user wanda, group hooked.
const HookedToken = "hooked-token"

// NewHooks starts the webhooks with certificates of the authority.
func NewHooks(a *Authority) *Hooks {
	h := &Hooks{}
	mux := http.NewServeMux()
	mux.HandleFunc("/authenticate", h.authenticate)
	mux.HandleFunc("/authorize", h.authorize)
	mux.HandleFunc("/audit", h.audit)
	mux.HandleFunc("/admit/{judge}", admit)
	mux.HandleFunc("/admit/{judge}/{label}", admit)
	h.Server = a.serve(mux)
	return h
}

// Asked returns the number of requests to /authorize.
func (h *Hooks) Asked() int64 { return h.asked.Load() }

// Batches returns the audit events so far, a slice for each request.
func (h *Hooks) Batches() [][]auditv1.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.batches)
}

func (h *Hooks) authenticate(w http.ResponseWriter, r *http.Request) {
	var review authenticationv1.TokenReview
	if !read(w, r, &review) {
		return
	}
	if review.Spec.Token == HookedToken {
		review.Status = authenticationv1.TokenReviewStatus{
			Authenticated: true,
			User: authenticationv1.UserInfo{
				Username: "wanda", UID: "wanda-uid", Groups: []string{"hooked"},
				Extra: map[string]authenticationv1.ExtraValue{"example.com/desk": {"7"}},
			},
		}
	}
	answer(w, review)
}

func (h *Hooks) authorize(w http.ResponseWriter, r *http.Request) {
	h.asked.Add(1)
	var review authorizationv1.SubjectAccessReview
	if !read(w, r, &review) {
		return
	}
	if of := review.Spec.ResourceAttributes; of != nil {
		review.Status.Allowed = of.Verb == "get" && of.Resource == "secrets" && of.Name == "shared"
		if strings.HasPrefix(of.Namespace, "vault") {
			review.Status = authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "the vault is closed"}
		}
	}
	answer(w, review)
}

func (h *Hooks) audit(w http.ResponseWriter, r *http.Request) {
	var list auditv1.EventList
	if !read(w, r, &list) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.batches = append(h.batches, list.Items)
}

// read decodes the body of a request. It answers 400 and returns false if that fails.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	// net/http notices that a client disconnects only after the body was read to its end.
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return err == nil
}
