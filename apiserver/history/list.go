package history

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

const (
	// mostExamined is how many changes one request examines. A list that would examine more
	// ends with a continue token, whether or not it has reached the limit of the request: a
	// selector that matches few of millions of changes costs a client many short requests.
	mostExamined = 10_000
	// readChanges and readBytes bound what is read from the database at once.
	readChanges = 500
	readBytes   = 1 << 20
)

// continueToken is where a page of a list begins, the content of a token.
type continueToken struct {
	Version string `json:"v"`
	// Revision is the last one of the list, that of its first page.
	Revision int64 `json:"rv"`
	// After is the last revision that the pages before have examined, or that of the moment since if Before is not 0; at the
	// end of the list it is Revision.
	After int64 `json:"after"`
	// Before is the earliest revision that the pages before have examined, if the newest changes are first; else 0.
	Before int64 `json:"before,omitempty"`
	// Lost is chosen.lostAfter of After, and Epoch the store's, when the page before was read.
	Lost  int64  `json:"lost"`
	Epoch string `json:"epoch"`
}

// List implements rest.Lister. The order is that of the revisions: a later page has later changes,
// and the list of a terminal ends with the newest. The selector order=newest reverses it.
func (s *Storage) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if options == nil {
		options = &internalversion.ListOptions{}
	}
	state, err := s.config.Driver.State(ctx)
	if err != nil {
		return nil, changes.APIError(err)
	}
	// Histories is read before and after the changes. What is deleted in between is then noticed
	// by this page or by the next.
	histories, err := s.config.Driver.Histories(ctx)
	if err != nil {
		return nil, changes.APIError(err)
	}
	chosen := s.choose(ctx, options, histories)
	at, err := begin(options, &chosen, state, histories)
	if err == nil && options.Continue == "" {
		err = s.bound(ctx, &at, &chosen, histories)
	}
	if err != nil {
		return nil, err
	}
	list := &ChangeList{Items: []Change{}, ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(at.Revision, 10)}}
	if chosen.nothing {
		return list, nil
	}
	if chosen.order != "" && at.Before == 0 {
		at.Before = at.Revision + 1
	}
	after := at.After
	if err := s.read(ctx, &chosen, &at, options.Limit, list); err != nil {
		return nil, err
	}
	// A list with the newest changes first ends with what is left, unless it has to reach back to a moment.
	if options.Continue != "" && at.Before == 0 || chosen.since != "" {
		now, err := s.config.Driver.Histories(ctx)
		if err != nil {
			return nil, changes.APIError(err)
		}
		if chosen.lostAfter(after, now) != at.Lost {
			return nil, expiredPage()
		}
	}
	if at.After < at.Revision {
		at.Lost = chosen.lostAfter(at.After, histories)
		list.Continue = at.encode()
	}
	return list, nil
}

// read appends items until the page is full or the list ends. It moves at to where the next page begins.
func (s *Storage) read(ctx context.Context, chosen *chosen, at *continueToken, limit int64, list *ChangeList) error {
	rights, err := s.config.RightsOf(ctx)
	if err != nil {
		return err
	}
	for examined := 0; examined < mostExamined; {
		chosen.query.After, chosen.query.Before, chosen.query.Size, chosen.query.Limit = at.After, at.Before, readBytes, readChanges
		found, err := s.config.Driver.Changes(ctx, chosen.query)
		if err != nil {
			return changes.APIError(err)
		}
		created := changes.NewCreations(s.config.Driver)
		for i := range found {
			c := &found[i]
			switch {
			case at.Before != 0:
				at.Before = c.Revision
			case c.Revision > at.Revision:
				at.After = at.Revision
				return nil
			default:
				at.After = c.Revision
			}
			examined++
			if !chosen.selects(c) {
				continue
			}
			if sees, err := rights.Sees(ctx, c, created); err != nil {
				return err
			} else if !sees {
				continue
			}
			item, err := s.item(ctx, c, false)
			if err != nil {
				return err
			}
			list.Items = append(list.Items, *item)
			if limit > 0 && int64(len(list.Items)) >= limit {
				return nil
			}
		}
		if len(found) == 0 {
			at.After = at.Revision
			return nil
		}
	}
	return nil
}

// begin returns where the list of the options begins.
func begin(options *internalversion.ListOptions, chosen *chosen, state sqlstore.State, histories []sqlstore.History) (continueToken, error) {
	at := continueToken{Version: groupVersion.String(), Revision: state.Revision, Epoch: state.Epoch}
	asked, err := storage.APIObjectVersioner{}.ParseResourceVersion(options.ResourceVersion)
	if err != nil {
		return at, apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	wanted := int64(asked) //nolint:gosec // a greater one is too large, whether or not it overflows
	switch {
	case options.Continue != "" && wanted != 0:
		return at, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	case options.Continue != "":
		return resume(options.Continue, state)
	case asked > uint64(max(state.Revision, 0)):
		return at, storage.NewTooLargeResourceVersionError(asked, uint64(max(state.Revision, 0)), 1)
	case options.ResourceVersionMatch == metav1.ResourceVersionMatchExact:
		at.Revision = wanted
		if chosen.lostAfter(wanted, histories) > 0 {
			return at, expiredSince(wanted, histories)
		}
	}
	return at, nil
}

// bound moves the ends of a list to the moments that are chosen.
func (s *Storage) bound(ctx context.Context, at *continueToken, chosen *chosen, histories []sqlstore.History) (err error) {
	if err := chosen.check(); err != nil {
		return err
	}
	if chosen.since != "" {
		if at.After, err = s.revisionAt(ctx, chosen.since, chosen, histories); err != nil {
			return err
		}
	}
	if chosen.until != "" {
		until, err := s.revisionAt(ctx, chosen.until, chosen, histories)
		if err != nil {
			return err
		}
		at.Revision = min(at.Revision, until)
	}
	at.After = min(at.After, at.Revision)
	return nil
}

func resume(token string, state sqlstore.State) (at continueToken, err error) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(data, &at)
	}
	if err != nil || at.Version != groupVersion.String() || at.After < 0 || at.After > at.Revision || at.Before < 0 || at.Before > at.Revision+1 {
		return at, apierrors.NewBadRequest("the continue parameter is not one of a list of changes")
	}
	if at.Epoch != state.Epoch || at.Revision > state.Revision {
		return at, expiredPage()
	}
	return at, nil
}

func expiredPage() error {
	return apierrors.NewResourceExpired("changes of the remaining pages were deleted since the first page: begin a new list")
}

func (t *continueToken) encode() string {
	data, err := json.Marshal(t)
	if err != nil {
		panic(err) // a struct of numbers and strings
	}
	return base64.RawURLEncoding.EncodeToString(data)
}
