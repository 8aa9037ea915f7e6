package storetest

import "byre/sqlstore"

// testRequires: a write that requires another object takes effect only while that object has the
// UID and the generation that the write requires.
func testRequires(f fixture) {
	definition := sqlstore.Key{Group: "g", Resource: "definitions", Name: "widgets.g"}
	instance := func(name string) sqlstore.Key {
		return sqlstore.Key{Group: "g", Resource: "widgets", Owner: sqlstore.Custom, Namespace: "n", Name: name}
	}
	requiring := func(w sqlstore.Write, uid string, generation int64) sqlstore.Write {
		w.Requires = &sqlstore.Requirement{Key: definition, UID: uid, Generation: generation}
		return w
	}
	outcome := func(what string, w sqlstore.Write, want error) sqlstore.Outcome {
		f.Helper()
		// The write without a requirement shows that only the other one fails.
		other := create(instance("other-"+what), "x")
		got := f.commit(w, other)
		if !sameError(got[0].Err, want) || got[1].Err != nil {
			f.Errorf("%s: %v, want %v; a write beside it: %v", what, got[0].Err, want, got[1].Err)
		}
		return got[0]
	}
	put := func(w sqlstore.Write, generation int64) int64 {
		w.Generation = generation
		return f.revision(w)
	}
	const uid = "uid-widgets.g"
	outcome("of nothing", requiring(create(instance("a"), "1"), uid, 1), sqlstore.ErrRequired)
	at := put(create(definition, "one"), 1)
	a := outcome("create", requiring(create(instance("a"), "1"), uid, 1), nil)
	outcome("another uid", requiring(create(instance("b"), "1"), "uid-2", 1), sqlstore.ErrRequired)
	outcome("another generation", requiring(create(instance("b"), "1"), uid, 2), sqlstore.ErrRequired)
	outcome("exists", requiring(create(instance("a"), "1"), uid, 1), sqlstore.ErrExists)
	outcome("exists, another generation", requiring(create(instance("a"), "1"), uid, 2), sqlstore.ErrRequired)
	at = put(update(definition, at, "two"), -2)
	outcome("update of before", requiring(update(instance("a"), a.Revision, "2"), uid, 1), sqlstore.ErrRequired)
	outcome("create of before", requiring(create(instance("b"), "1"), uid, 2), sqlstore.ErrRequired)
	a = outcome("update", requiring(update(instance("a"), a.Revision, "2"), uid, -2), nil)
	at = put(update(definition, at, "three"), 0)
	a = outcome("unknown generation", requiring(update(instance("a"), a.Revision, "3"), uid, 7), nil)
	f.revision(remove(definition, at))
	imported := create(definition, "four")
	imported.UID = ""
	at = put(imported, 0)
	a = outcome("unknown uid", requiring(update(instance("a"), a.Revision, "4"), uid, 7), nil)
	f.revision(remove(definition, at))
	outcome("of what was deleted", requiring(remove(instance("a"), a.Revision), uid, 7), sqlstore.ErrRequired)
	outcome("without", remove(instance("a"), a.Revision), nil)
}

// testRequiresNone: a delete that requires a resource without objects takes effect only when the
// last of them is deleted.
func testRequiresNone(f fixture) {
	definition := sqlstore.Key{Group: "g", Resource: "definitions", Name: "widgets.g"}
	instance := sqlstore.Key{Group: "g", Resource: "widgets", Owner: sqlstore.Custom, Name: "a"}
	builtIn := instance
	builtIn.Owner = sqlstore.BuiltIn
	f.revision(create(builtIn, "a built-in resource of the same name"))
	at, a := f.revision(create(definition, "x")), f.revision(create(instance, "x"))
	last := remove(definition, at)
	last.RequiresNone = &sqlstore.Resource{Group: "g", Resource: "widgets", Owner: sqlstore.Custom}
	if o := f.commit(last)[0]; !sameError(o.Err, sqlstore.ErrInUse) {
		f.Errorf("with an object: %+v", o)
	}
	f.revision(remove(instance, a))
	if o := f.commit(last)[0]; o.Err != nil || o.Revision != a+2 {
		f.Errorf("without objects: %+v", o)
	}
	never := create(definition, "x")
	never.RequiresNone = &sqlstore.Resource{Group: "g", Resource: "never", Owner: sqlstore.Custom}
	f.revision(never)
}
