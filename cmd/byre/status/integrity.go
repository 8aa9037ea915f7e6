package status

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"byre/sqlstore"
)

// CheckResult is what a check has read and found.
type CheckResult struct {
	Revision int64 `json:"revision"`
	Objects  int64 `json:"objects"`
	Changes  int64 `json:"changes"`
	// LastChange is when the last object or change was written; zero if there is none.
	LastChange time.Time `json:"lastChange,omitzero"`
	// Encrypted is the number of encrypted values. Decrypted is how many of them were
	// decrypted; of the others only the envelope was checked.
	Encrypted int64 `json:"encrypted"`
	Decrypted int64 `json:"decrypted"`
	// MissingUpTo is the last revision of history that is missing; 0 if none is. The
	// only repair is to compact up to this revision; clients list again then.
	MissingUpTo int64 `json:"missingUpTo,omitempty"`
	// Damaged is true if the file, or a row, is not what was written. Nothing may be written to it then.
	Damaged bool `json:"damaged,omitempty"`
	// FindingCount is the number of findings. Findings has the first of them.
	FindingCount int64              `json:"findingCount"`
	Findings     []sqlstore.Finding `json:"findings"`
}

// maxFindings is the greatest number of findings that are kept.
const maxFindings = 1000

// Add adds a finding.
func (r *CheckResult) Add(f sqlstore.Finding) {
	r.FindingCount++
	if len(r.Findings) < maxFindings {
		r.Findings = append(r.Findings, f)
	}
}

// follow notes when something was written.
func (r *CheckResult) follow(t time.Time) {
	if t.After(r.LastChange) {
		r.LastChange = t
	}
}

// OpenForCheck decrypts a stored value and returns the object in it as JSON. It is also called
// with values that are not encrypted, and fails if no provider of their resource reads
// such values.
type OpenForCheck func(key sqlstore.Key, stored []byte) ([]byte, error)

// checker checks one snapshot.
type checker struct {
	result    CheckResult
	open      OpenForCheck
	header    sqlstore.Header
	objects   map[keyHash]objectVersion
	revisions map[int64]struct{}        // of the objects
	chains    map[keyHash]objectVersion // by the newest change of each key
	damaged   map[keyHash]struct{}      // keys of which a row can't be read: their history has gaps
	customs   customs
}

// keyHash stands for a key, because keys are long and there are many.
type keyHash [16]byte

// objectVersion is one point in the history of an object.
type objectVersion struct {
	revision, created int64
	uid               [8]byte
	gone              bool
	// isKept says of an object that its change must be there.
	isKept bool
}

// Check reads a snapshot to its end, and goes on after a *sqlstore.DamagedRow. If reading fails
// otherwise, it returns the error and what was found until then. open is nil if the keys of encrypted values are not
// available.
func Check(s sqlstore.Snapshot, open OpenForCheck) (CheckResult, error) {
	c := &checker{
		open:    open,
		header:  s.Header,
		objects: make(map[keyHash]objectVersion), revisions: make(map[int64]struct{}),
		chains:  make(map[keyHash]objectVersion),
		damaged: make(map[keyHash]struct{}),
		customs: customs{definitions: make(map[string][]string), instances: make(map[[2]string]int)},
		result:  CheckResult{Revision: s.Revision, Findings: []sqlstore.Finding{}},
	}
	err := c.read(s)
	return c.result, err
}

func (c *checker) read(s sqlstore.Snapshot) error {
	for row, err := range s.Objects {
		if c.damagedRow(err) != nil {
			continue
		}
		if err != nil {
			return err
		}
		c.checkObject(row)
		c.result.follow(row.Time)
	}
	c.customs.compare(c.report)
	last := int64(0)
	for row, err := range s.Changes {
		if damaged := c.damagedRow(err); damaged != nil {
			last = max(last, damaged.Revision) // it is there
			continue
		}
		if err != nil {
			return err
		}
		c.checkDensity(max(last, s.Compacted)+1, row.Revision)
		c.checkChange(row)
		c.result.follow(row.Time)
		last = row.Revision
	}
	if last = max(last, s.Compacted); last < s.Revision {
		c.checkDensity(last+1, s.Revision+1)
	}
	c.compareEnds()
	return nil
}

func (c *checker) report(row, reason string, arguments ...any) {
	c.result.Add(sqlstore.Finding{Row: row, Reason: fmt.Sprintf(reason, arguments...)})
}

// damagedRow returns the error if it is of a row only, and adds its finding; otherwise nil.
func (c *checker) damagedRow(err error) *sqlstore.DamagedRow {
	row, ok := errors.AsType[*sqlstore.DamagedRow](err)
	if ok {
		c.result.Add(row.Finding)
		c.result.Damaged = true
		c.damaged[hashOf(row.Key)] = struct{}{}
	}
	return row
}

func (c *checker) checkObject(r *sqlstore.ObjectRow) {
	c.result.Objects++
	row := "objects: " + r.Display()
	if r.Created <= 0 || r.Created > r.Revision || r.Revision > c.header.Revision {
		c.report(row, "has revision %d and was created at %d, while the last revision is %d", r.Revision, r.Created,
			c.header.Revision)
	}
	h := hashOf(r.Key)
	if _, twice := c.objects[h]; twice {
		c.report(row, "stands twice")
	}
	if _, twice := c.revisions[r.Revision]; twice {
		c.report(row, "has the revision of another object, %d", r.Revision)
	}
	c.objects[h] = objectVersion{revision: r.Revision, created: r.Created, uid: uidOf(r.UID),
		isKept: r.Revision > c.header.RetainedOf(r.Of()).CompleteAfter}
	c.revisions[r.Revision] = struct{}{}
	c.customs.add(r.Key, c.checkValue(row, r.Key, r.UID, r.Value))
}

// checkDensity reports the revisions that are missing between want and got.
func (c *checker) checkDensity(want, got int64) {
	if got <= want || got <= c.header.Compacted {
		return
	}
	c.result.MissingUpTo = max(c.result.MissingUpTo, got-1)
	c.report("changes", "revisions %d to %d are missing: watches that resume before them would miss changes", want, got-1)
}

// checkChange compares a change with the previous change of the same key.
func (c *checker) checkChange(r *sqlstore.ChangeRow) {
	c.result.Changes++
	row := fmt.Sprintf("changes: revision %d, %s", r.Revision, r.Display())
	if r.Revision > c.header.Revision {
		c.report(row, "is beyond the last revision, %d", c.header.Revision)
	}
	h, completeAfter := hashOf(r.Key), c.header.RetainedOf(r.Of()).CompleteAfter
	before, known := c.chains[h]
	_, isDamaged := c.damaged[h]
	switch {
	case isDamaged:
	case r.Op == sqlstore.Create:
		if known && !before.gone {
			c.report(row, "creates what revision %d left there", before.revision)
		}
		if r.Created != r.Revision {
			c.report(row, "creates, but says that the object was created at %d", r.Created)
		}
	case r.Value == nil:
		c.report(row, "lacks the value that it replaced")
	case known && (before.gone || before.revision != r.Replaces || before.created != r.Created):
		c.report(row, "replaces revision %d, created at %d, but the change before is %d, created at %d", r.Replaces,
			r.Created, before.revision, before.created)
	case !known && r.Revision > completeAfter && r.Replaces > completeAfter:
		c.result.MissingUpTo = max(c.result.MissingUpTo, r.Replaces)
		c.report(row, "replaces revision %d, whose change is missing", r.Replaces)
	case known && before.uid != [8]byte{} && before.uid != uidOf(r.UID):
		c.report(row, "replaces an object with another uid than the change before has written")
	}
	if r.Op != sqlstore.Create && r.Value != nil {
		c.checkValue(row, r.Key, r.UID, r.Value)
	}
	after := objectVersion{revision: r.Revision, created: r.Created, gone: r.Op == sqlstore.Delete}
	if r.Op == sqlstore.Create {
		after.uid = uidOf(r.UID)
	}
	c.chains[h] = after
}

// compareEnds compares the last change of each key with the object.
func (c *checker) compareEnds() {
	for h, end := range c.chains {
		object, exists := c.objects[h]
		_, isDamaged := c.damaged[h]
		switch {
		case isDamaged:
		case end.gone == exists:
			c.report(fmt.Sprintf("changes: revision %d", end.revision), "is the last change of its object, which %s",
				map[bool]string{true: "it deleted, but which is there", false: "is not there"}[exists])
		case exists && (object.revision != end.revision || object.created != end.created):
			c.report(fmt.Sprintf("changes: revision %d", end.revision), "is the last change of an object that is at revision %d",
				object.revision)
		case exists && end.uid != [8]byte{} && end.uid != object.uid:
			c.report(fmt.Sprintf("changes: revision %d", end.revision), "created an object that has another uid")
		}
	}
	for h, object := range c.objects {
		_, changed := c.chains[h]
		if _, isDamaged := c.damaged[h]; !changed && !isDamaged && object.isKept {
			c.result.MissingUpTo = max(c.result.MissingUpTo, object.revision)
			c.report(fmt.Sprintf("objects: revision %d", object.revision), "has no change, though the history reaches back before it")
		}
	}
}

// checkValue decodes a value and compares it with its key. It returns the text of the
// object, or nil if the value could not be read.
func (c *checker) checkValue(row string, key sqlstore.Key, uid string, stored []byte) []byte {
	if !json.Valid(stored) {
		c.report(row, "its value is not JSON")
		return nil
	}
	isEncrypted := bytes.HasPrefix(stored, []byte(`"`))
	if isEncrypted {
		c.result.Encrypted++
		if !bytes.HasPrefix(stored, []byte(`"k8s:enc:`)) && !bytes.HasPrefix(stored, []byte(`"byre:raw:`)) {
			c.report(row, "its value is a text that no encryption has written")
			return nil
		}
	}
	switch {
	case c.open != nil && key.Group != "byre":
		plain, err := c.open(key, stored)
		if err != nil {
			c.report(row, "its value %v", err)
			return nil
		}
		if isEncrypted {
			c.result.Decrypted++
		}
		stored = plain
	case isEncrypted:
		return nil
	}
	// An import without the keys could not read the uid of an encrypted object.
	isImported := isEncrypted && uid == ""
	return c.checkObjectText(row, key, uid, stored, isImported)
}

// checkObjectText compares the text of an object with its key and, unless anyUID is
// true, with the uid of its row.
func (c *checker) checkObjectText(row string, key sqlstore.Key, uid string, text []byte, anyUID bool) []byte {
	var object struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
			UID       string `json:"uid"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(text, &object); err != nil {
		c.report(row, "its value is not an object: %v", err)
		return nil
	}
	group, _, hasGroup := strings.Cut(object.APIVersion, "/")
	if !hasGroup {
		group = ""
	}
	meta := object.Metadata
	switch {
	case object.APIVersion == "" || object.Kind == "":
		c.report(row, "its value has no apiVersion or no kind")
	case group != key.Group && key.Group != "byre":
		c.report(row, "its value is of the API group %q", group)
	case isNameless(key):
	case meta.Name != key.Name || meta.Namespace != key.Namespace:
		c.report(row, "its value is that of %q in namespace %q", meta.Name, meta.Namespace)
	case meta.UID != uid && !anyUID:
		c.report(row, "its value has the uid %q, the row %q", meta.UID, uid)
	}
	return text
}

// isNameless reports whether the objects under the key have no metadata: allocations,
// and the records that byre stores for itself.
func isNameless(key sqlstore.Key) bool {
	return key.Group == "byre" || key.Group == "" &&
		(key.Resource == "servicenodeportallocations" || key.Resource == "serviceipallocations")
}

func hashOf(k sqlstore.Key) keyHash {
	sum := sha256.Sum256([]byte(strings.Join([]string{k.Group, k.Resource, k.Owner.String(), k.Namespace, k.Name},
		"\x00")))
	return keyHash(sum[:16])
}

func uidOf(uid string) [8]byte {
	sum := sha256.Sum256([]byte(uid))
	return [8]byte(sum[:8])
}

// customs are the custom resources and their definitions.
type customs struct {
	// definitions has the apiVersions of each definition by its name; nil for a definition
	// that could not be read.
	definitions map[string][]string
	// instances counts the custom resources by the definition that they need and their
	// apiVersion, which is empty for one that could not be read.
	instances map[[2]string]int
}

// add adds an object. value is nil if it could not be read.
func (c *customs) add(key sqlstore.Key, value []byte) {
	switch {
	case key.Group == "apiextensions.k8s.io" && key.Resource == "customresourcedefinitions":
		var crd struct {
			Spec struct {
				Group    string                  `json:"group"`
				Versions []struct{ Name string } `json:"versions"`
			} `json:"spec"`
		}
		_ = json.Unmarshal(value, &crd) // what can't be read is reported elsewhere
		var versions []string
		for _, v := range crd.Spec.Versions {
			versions = append(versions, crd.Spec.Group+"/"+v.Name)
		}
		c.definitions[key.Name] = versions
	case key.Owner == sqlstore.Custom:
		var object struct {
			APIVersion string `json:"apiVersion"`
		}
		_ = json.Unmarshal(value, &object)
		c.instances[[2]string{key.Resource + "." + key.Group, object.APIVersion}]++
	}
}

// compare reports the custom resources that nobody can read.
func (c *customs) compare(report func(row, reason string, arguments ...any)) {
	kinds := slices.SortedFunc(maps.Keys(c.instances), func(a, b [2]string) int {
		return strings.Compare(a[0]+" "+a[1], b[0]+" "+b[1])
	})
	for _, of := range kinds {
		definition, version := of[0], of[1]
		versions, exists := c.definitions[definition]
		switch {
		case !exists:
			report("objects: "+definition,
				"%d objects of version %q have no definition: create their definition again and delete it; they are deleted with it", c.instances[of], version)
		case versions != nil && version != "" && !slices.Contains(versions, version):
			report("objects: "+definition,
				"%d objects are of version %q, which their definition lacks: add the version to it, or delete it; they are deleted with it", c.instances[of], version)
		}
	}
}
