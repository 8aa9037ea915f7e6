package objectstore

import "strconv"

// document is one object's JSON, and where its resourceVersion goes: the only
// part of an answer that is not stored.
type document struct {
	body []byte
	// splice is where the member goes; around it stand before and after.
	splice        int
	before, after string
	// typeMeta is where the members after kind and apiVersion begin, in a
	// typed object, which has these two first; 0 elsewhere.
	typeMeta int
}

const (
	memberStart = `"resourceVersion":"`
	memberEnd   = `"`
	// memberLen is what a resourceVersion adds at most, about.
	memberLen = 48
)

// newDocument finds the place. A typed object gets its resourceVersion where
// encoding/json would put it, after uid; an unstructured one, whose keys are
// sorted, in order.
func newDocument(body []byte) document {
	d := document{body: body}
	top := scanner{body, 0}
	typed := false
	for first := true; top.member(); first = false {
		key := top.key()
		if first {
			typed = string(key) == "kind"
		}
		start := top.pos
		top.skip()
		if typed && d.typeMeta == 0 && string(key) == "apiVersion" && top.is(',') {
			d.typeMeta = top.pos + 1
		}
		if string(key) == "metadata" && start < len(body) && body[start] == '{' {
			d.place(start, typed)
			return d
		}
	}
	// An object without metadata gets one.
	d.splice = 1
	if d.typeMeta > 0 {
		d.splice = d.typeMeta
	}
	d.before, d.after = `"metadata":{`+memberStart, memberEnd+`}`
	if rest := (scanner{body, d.splice}); !rest.is('}') {
		d.after += ","
	}
	return d
}

// place finds the place in the metadata that begins at an offset.
func (d *document) place(offset int, typed bool) {
	in := scanner{d.body, offset}
	last := offset + 1
	some := false
	for in.member() {
		key := in.key()
		if typed && !beforeVersion(key) || !typed && string(key) > "resourceVersion" {
			break
		}
		in.skip()
		last, some = in.pos, true
	}
	d.splice, d.before, d.after = last, memberStart, memberEnd
	if some {
		d.before = "," + d.before
	} else if rest := (scanner{d.body, last}); !rest.is('}') {
		d.after += ","
	}
}

// beforeVersion says which members of ObjectMeta come before resourceVersion.
func beforeVersion(key []byte) bool {
	switch string(key) {
	case "name", "generateName", "namespace", "selfLink", "uid":
		return true
	}
	return false
}

func (d *document) appendJSON(dst []byte, revision int64, typeMeta bool) []byte {
	from := 0
	if !typeMeta && d.typeMeta > 0 {
		dst = append(dst, '{')
		from = d.typeMeta
	}
	dst = append(dst, d.body[from:d.splice]...)
	dst = append(dst, d.before...)
	dst = strconv.AppendInt(dst, revision, 10)
	dst = append(dst, d.after...)
	return append(dst, d.body[d.splice:]...)
}
