use super::*;

fn read(text: &str) -> Spec {
    text.parse().unwrap_or_else(|why| panic!("{text:?}: {why}"))
}

fn farshore(options: &[(&str, &str)], build: Option<&str>) -> Kind {
    let options = options.iter().map(|(key, value)| ((*key).to_string(), (*value).to_string())).collect();
    Kind::Farshore { options, build: build.map(PathBuf::from) }
}

#[test]
fn every_kind_is_read() {
    let command = |words: &[&str]| Kind::Command(words.iter().map(ToString::to_string).collect());
    for (text, kind) in [
        ("native", Kind::Native),
        (" farshore ", farshore(&[], None)),
        ("farshore:prefetch=none+evictors=2", farshore(&[("prefetch", "none"), ("evictors", "2")], None)),
        ("farshore:swap=dir:/a+swap=ram,size=1G", farshore(&[("swap", "dir:/a"), ("swap", "ram,size=1G")], None)),
        ("farshore:policy=second-chance,batch=3", farshore(&[("policy", "second-chance,batch=3")], None)),
        (
            "farshore:fault=poll+threshold=1M+build=/old\\+er",
            farshore(&[("fault", "poll"), ("threshold", "1M")], Some("/old+er")),
        ),
        ("farshore:attach=csr,ahead=32+prefetch=none", farshore(&[("attach", "csr,ahead=32"), ("prefetch", "none")], None)),
        ("farshore:ablate=rescue,batch=1", farshore(&[("ablate", "rescue,batch=1")], None)),
        ("linux-swap", Kind::Kernel { kind: kernel::Kind::File, counted: false, ahead: true }),
        ("zram", Kind::Kernel { kind: kernel::Kind::Zram, counted: false, ahead: true }),
        ("zswap", Kind::Kernel { kind: kernel::Kind::Zswap, counted: false, ahead: true }),
        ("zram:pool=counted", Kind::Kernel { kind: kernel::Kind::Zram, counted: true, ahead: true }),
        ("linux-swap:readahead=none", Kind::Kernel { kind: kernel::Kind::File, counted: false, ahead: false }),
        ("zram:readahead=none+pool=counted", Kind::Kernel { kind: kernel::Kind::Zram, counted: true, ahead: false }),
        ("zswap:pool=counted", Kind::Kernel { kind: kernel::Kind::Zswap, counted: true, ahead: true }),
        ("farshore:swap=ram:lz4+swap=dir", farshore(&[("swap", "ram:lz4"), ("swap", "dir")], None)),
        ("farshore:swap=dir,size=4M", farshore(&[("swap", "dir,size=4M")], None)),
        ("command:nice -n 5", command(&["nice", "-n", "5"])),
        ("command:sh -c 'exec \"$@\"' sh", command(&["sh", "-c", "exec \"$@\"", "sh"])),
        ("command:label=low env.A=1 nice env.B=2", command(&["nice", "env.B=2"])),
    ] {
        let spec = read(text);
        assert_eq!(spec.kind, kind, "{text}");
        assert_eq!(spec.to_string(), text.trim());
        assert!(text.trim().starts_with(spec.kind()));
        assert_eq!(spec.is_the_kernels(), matches!(spec.kind(), "linux-swap" | "zram" | "zswap"));
    }
    let spec = read("zram:env.LOAD_BALLAST=20+label=slow one+env.X=a=b");
    assert_eq!(spec.environment, [("LOAD_BALLAST", "20"), ("X", "a=b")].map(|(k, v)| (k.to_string(), v.to_string())).into());
    assert_eq!(spec.label.as_deref(), Some("slow one"));
}

#[test]
fn commas_separate_unless_a_backslash_is_before_them() {
    let specs = parse_list("farshore,farshore:swap=ram\\,size=1G,command:sh -c 'a\\,b \\n' x,native").unwrap();
    assert_eq!(specs.len(), 4);
    assert_eq!(specs[1].kind, farshore(&[("swap", "ram,size=1G")], None));
    assert_eq!(specs[2].kind, Kind::Command(["sh", "-c", "a,b \\n", "x"].map(String::from).into()));
}

#[test]
fn what_is_not_known_is_refused_with_what_there_is() {
    for (text, part) in [
        ("", "unknown target \"\": use native, farshore"),
        ("native,", "unknown target \"\""),
        ("farshore:swap=dir\\,size=x", "option \"swap\" of target \"farshore\": "),
        ("swap", "unknown target \"swap\": use native, farshore[:OPTION+…], linux-swap, zram, zswap, command:WORDS"),
        ("farshore:ablate=rescues", "what can be left out: pipeline"),
        ("zram:pool=1G", "option \"pool\" of target \"zram\" is \"1G\": the only value is counted"),
        ("zram:pool=counted+pool=counted", "option \"pool\" of target \"zram\" is given twice"),
        ("linux-swap:readahead=8", "option \"readahead\" of target \"linux-swap\" is \"8\": the only value is none"),
        ("zram:readahead=none+readahead=none", "option \"readahead\" of target \"zram\" is given twice"),
        ("native:readahead=none", "unknown option \"readahead\" of target \"native\""),
        ("linux-swap:pool=counted", "unknown option \"pool\" of target \"linux-swap\""),
        ("native:size=1", "unknown option \"size\" of target \"native\": it takes label=NAME, env.NAME=VALUE"),
        ("native:", "invalid option \"\" of target \"native\": write KEY=VALUE"),
        ("farshore:poll", "invalid option \"poll\" of target \"farshore\": write KEY=VALUE; it takes swap, fault"),
        ("farshore:evictors=", "invalid option \"evictors=\""),
        (
            "farshore:stats=x",
            "unknown option \"stats\" of target \"farshore\": it takes swap, fault, policy, prefetch, evictors, batch, writes, free, threshold, ablate, attach, build, label=NAME",
        ),
        ("farshore:memory=1G", "use --memory"),
        ("farshore:evictors=1+evictors=2", "\"evictors\" of target \"farshore\" is given twice"),
        ("farshore:build=a+build=b", "\"build\" of target \"farshore\" is given twice"),
        ("zram:label=a+label=b", "\"label\" of target \"zram\" is given twice"),
        ("zram:env.A=a+env.A=b", "\"env.A\" of target \"zram\" is given twice"),
        ("zram:env.=a", "unknown option \"env.\""),
        ("zram:build=a", "unknown option \"build\" of target \"zram\""),
        ("farshore:fault=push", "option \"fault\" of target \"farshore\": invalid fault mode \"push\""),
        ("farshore:swap=tape:x", "invalid swap space \"tape:x\""),
        ("farshore:evictors=some", "number \"some\""),
        ("farshore:threshold=1Q", "invalid size \"1Q\""),
        ("farshore:policy==", "option \"policy\""),
        ("command", "no command"),
        ("command:", "no command"),
        ("command:label=x", "no command"),
        ("command:echo 'a", "not closed"),
    ] {
        let why = parse_list(text).expect_err(text);
        assert!(why.contains(part), "{text:?}: {why}");
        assert!(!why.contains('\n'), "{text:?}: {why}");
    }
}

#[test]
fn labels_are_unique() {
    let of = |text: &str| labels(&parse_list(text).unwrap());
    assert_eq!(of("farshore,farshore,zram,farshore"), ["farshore", "farshore 2", "zram", "farshore 3"]);
    assert_eq!(of("native:label=farshore 2,farshore,farshore"), ["farshore 2", "farshore", "farshore 3"]);
    assert_eq!(of("farshore:evictors=2,command:nice -n 5"), ["farshore:evictors=2", "command:nice -n 5"]);
    let builds = [Spec::of_build(Path::new("/a,b+c"), "old"), Spec::of_build(Path::new("/x"), "old")];
    assert_eq!(labels(&builds), ["old", "old 2"]);
    assert_eq!(builds[0].kind, farshore(&[], Some("/a,b+c")));
}

#[test]
fn a_build_is_a_command_or_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(command_of(directory.path()), directory.path().join("farshore"));
    assert_eq!(command_of(Path::new("/some/farshore-old")), Path::new("/some/farshore-old"));
}
