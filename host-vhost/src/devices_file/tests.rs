//! Each mistake's text and place.

use std::fs::File;

use super::*;
use crate::device::DoorbellMode;
use crate::endpoint::Endpoint;
use crate::storage::{Direct, StorageConfig};

/// A folder with images, and a file in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, len) in [("a.img", 1 << 20), ("b.img", 1 << 20), ("small.img", 512), ("empty.img", 0)] {
            File::create(folder.path().join(name)).unwrap().set_len(len).unwrap();
        }
        std::fs::write(folder.path().join("a.qcow2"), b"QFI\xfb and more").unwrap();
        std::os::unix::fs::symlink("a.img", folder.path().join("link.img")).unwrap();
        std::fs::create_dir(folder.path().join("dir")).unwrap();
        Self(folder)
    }

    fn read(&self, text: &str) -> Result<DevicesFile, DevicesFileError> {
        let path = self.0.path().join("devices.toml");
        std::fs::write(&path, text).unwrap();
        DevicesFile::read(&path)
    }

    /// The mistakes of a text, without its folder.
    fn mistakes(&self, text: &str) -> Vec<String> {
        let folder = std::fs::canonicalize(self.0.path()).unwrap();
        match self.read(text) {
            Ok(_) => panic!("no mistake in\n{text}"),
            Err(DevicesFileError::Read { what, .. }) => vec![what],
            Err(DevicesFileError::Mistakes { mistakes, .. }) => mistakes
                .into_iter()
                .map(|Mistake { line, column, text }| {
                    format!("{line}:{column}: {text}").replace(&format!("{}/", folder.display()), "")
                })
                .collect(),
        }
    }
}

/// A device with one medium whose extra lines come after line 3, and extra namespace lines after line 6.
fn device(more: &str, namespace: &str) -> String {
    format!(
        "[[device]]\nsocket = \"s\"\nprotocol = \"vfio-user\"\n{more}\n[[device.namespace]]\n{namespace}\n"
    )
}

#[test]
fn every_key_is_read() {
    let folder = Folder::new();
    let file = folder.read(
        r#"
        [[device]]
        socket = "one"
        protocol = "vfio-user"
        cpus = "0"
        queues = 3
        serial = "ONE"
        doorbells = "shadow"
        shadow-doorbells = false
        queue-entries = 256
        vectors = 5
        mdts = "128K"
        state = "none"

        [[device.namespace]]
        file = "a.img"
        block-size = 4096
        read-only = true
        direct = "off"

        [[device.namespace]]
        ram = 1048576

        [[device]]
        fd = 17
        protocol = "vhost-user"
        pollers = 2
        serial = "TWO"
        namespace = [{ qcow2 = "a.qcow2" }]

        [[device]]
        socket = "dir"
        protocol = "vfio-user"
        cpus = [0]
        namespace = [{ file = "a.img", read-only = true }, { null = "1T" }]
        "#,
    );
    let at = |name: &str| folder.0.path().join(name);
    let devices = file.unwrap().into_devices();
    assert_eq!(devices.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 24, 31]);
    let [(_, Device::Nvme(one)), (_, Device::Virtio(two)), (_, Device::Nvme(three))] = &devices[..] else {
        panic!("{devices:?}");
    };
    assert_eq!(one.endpoint, Endpoint::Path(at("one")));
    assert_eq!((one.pollers, &one.cpus[..], one.queues, one.vectors), (1, &[0][..], 3, 5));
    assert_eq!((one.doorbells, one.shadow_doorbells), (DoorbellMode::Shadow, false));
    assert_eq!((one.queue_entries, one.mdts_bytes), (256, 128 << 10));
    assert_eq!((one.serial.as_deref(), one.state.as_deref()), (Some("ONE"), Some(Path::new("none"))));
    let file = StorageConfig::File { path: at("a.img"), read_only: true, direct: Direct::Off };
    assert_eq!((&one.namespaces[0].storage, one.namespaces[0].block_bytes), (&file, 4096));
    assert_eq!(one.namespaces[1].storage, StorageConfig::Ram { size_bytes: 1 << 20 });
    assert_eq!((&two.endpoint, two.pollers, two.queues), (&Endpoint::Fd(17), 2, 64));
    assert_eq!(two.namespace.storage, StorageConfig::Qcow2 { path: at("a.qcow2"), read_only: false });
    assert_eq!(three.namespaces[1].storage, StorageConfig::Null { size_bytes: 1 << 40 });
    assert_eq!((three.doorbells, three.queue_entries), (DoorbellMode::Mapped, 1024));
}

#[test]
fn a_wrong_key_or_value_is_told_with_its_place() {
    let folder = Folder::new();
    let ram = "ram = \"1M\"";
    for (text, told) in [
        ("", "1:1: no device: begin one with [[device]] and give it a socket and a protocol"),
        ("device = 1", "1:10: write this as a table of its own that begins with [[device]]"),
        ("[device]\nsocket = \"s\"", "1:1: write this as a table of its own that begins with [[device]]"),
        ("[[devise]]", "1:3: the file has no key `devise`; did you mean `device`?"),
        ("[[device]\n", "1:10: this isn't TOML: unclosed array table, expected `]`"),
        (&device("pollers = 1\npollers = 2", ram), "5:1: this isn't TOML: duplicate key"),
        (&device("sokcet = 1", ram), "4:1: a device has no key `sokcet`; did you mean `socket`?"),
        (
            &device("queue_entries = 4", ram),
            "4:1: a device has no key `queue_entries`; did you mean `queue-entries`?",
        ),
        (
            &device("colour = 1", ram),
            "4:1: a device has no key `colour`; the keys are socket, fd, protocol, namespace, pollers, cpus, queues, \
             serial, doorbells, shadow-doorbells, queue-entries, vectors, mdts, state, \
             sandbox",
        ),
        (
            &device("", "ram = \"1M\"\nreadonly = true"),
            "7:1: a namespace has no key `readonly`; did you mean `read-only`?",
        ),
        (
            &device("pollers = \"2\"", ram),
            "4:11: `pollers` takes a whole number from 1 to 16, without quotes, but this is a string",
        ),
        (&device("pollers = 17", ram), "4:11: `pollers` has to be between 1 and 16"),
        (&device("pollers = -1", ram), "4:11: `pollers` has to be between 1 and 16"),
        (&device("queues = 65", ram), "4:10: `queues` has to be between 1 and 64"),
        (&device("queue-entries = 1", ram), "4:17: `queue-entries` has to be between 2 and 65536"),
        (&device("vectors = 0", ram), "4:11: `vectors` has to be between 1 and 128"),
        (&device("mdts = \"3M\"", ram), "4:8: `mdts` is not a power of two from 8K to 1M"),
        (
            &device("mdts = 1.5", ram),
            "4:8: `mdts` takes a size, such as mdts = \"512M\", or a number of bytes, but this is a number with a point",
        ),
        (&device("serial = \"\"", ram), "4:10: `serial` has to be 1 to 20 printable ASCII characters"),
        (
            &device("serial = 7", ram),
            "4:10: `serial` takes a string, such as serial = \"DISK7\", but this is a whole number",
        ),
        (&device("doorbells = \"loud\"", ram), "4:13: `doorbells` is \"mapped\" or \"shadow\", not \"loud\""),
        (
            &device("shadow-doorbells = \"no\"", ram),
            "4:20: `shadow-doorbells` takes true or false, without quotes, but this is a string",
        ),
        (
            &device("fd = 3", ram),
            "4:6: `fd` is there instead of `socket`, and this device has both: remove one",
        ),
        (
            &device("cpus = [0, \"1\"]", ram),
            "4:8: `cpus` takes processors, such as cpus = [2, 3] or cpus = \"4-7\"",
        ),
        (&device("cpus = \"3-1\"", ram), "4:8: `3-1` is not a range of processors"),
        (&device("cpus = []", ram), "4:8: `cpus` names 1 to 16 processors, a poller each"),
        (
            &device("pollers = 2\ncpus = [0]", ram),
            "5:8: 1 processors for 2 pollers: name one for each, or leave `pollers` or `cpus` out",
        ),
        (
            "[[device]]\nsocket = \"s\"\nprotocol = \"iscsi\"\nnamespace = [{ ram = 512 }]",
            "3:12: `protocol` is \"vfio-user\" (an NVMe controller) or \"vhost-user\" (a virtio disk), not \"iscsi\"",
        ),
        (
            "[[device]]\nsocket = \"s\"\nnamespace = [{ ram = 512 }]",
            "1:1: this device has no protocol: add protocol = \"vfio-user\" (an NVMe controller) or \"vhost-user\" (a virtio disk)",
        ),
        (
            "\n[[device]]\nprotocol = \"vfio-user\"\nnamespace = [{ ram = 512 }]",
            "2:1: this device has no socket: add socket = \"/run/doorbell/vm1.sock\"",
        ),
        (
            "[[device]]\nsocket = \"s\"\nprotocol = \"vhost-user\"\nmdts = \"1M\"\nnamespace = [{ ram = 512 }]",
            "4:1: `mdts` is for vfio-user devices; a vhost-user disk has no such thing: remove it",
        ),
        (
            "[[device]]\nsocket = \"s\"\nprotocol = \"vhost-user\"\nnamespace = [{ ram = 512 }, { ram = 512 }]",
            "4:29: a vhost-user device is one disk: put this namespace into a device of its own",
        ),
    ] {
        assert_eq!(folder.mistakes(text), [told], "{text}");
    }
}

#[test]
fn a_wrong_storage_is_told_with_its_place() {
    let folder = Folder::new();
    const MEDIUM: &str =
        "give it one medium: file = \"disk.img\", qcow2 = \"disk.qcow2\", ram = \"1G\" or null = \"1T\"";
    for (namespace, told) in [
        ("", format!("5:1: this namespace has no storage: {MEDIUM}")),
        ("file = \"a.img\"\nram = 512", format!("5:1: this namespace has 2 of file, ram: {MEDIUM}")),
        ("file = \"\"", "6:8: `file` is empty: name a path".into()),
        ("ram = \"lots\"", "6:7: `ram`: \"lots\" is not a size: it doesn't start with a whole number; write bytes or a number with K, M, G or T, such as 512M or 1G".into()),
        ("ram = -5", "6:7: `ram` has to be a number of bytes, 0 or more".into()),
        ("ram = 0", "6:7: 0 bytes is no whole number of blocks of 512, 1 or more".into()),
        ("null = \"1K\"\nblock-size = 4096", "6:8: 1024 bytes is no whole number of blocks of 4096, 1 or more".into()),
        ("ram = \"1M\"\nblock-size = 520", "7:14: `block-size` is 512 or 4096, not 520".into()),
        ("ram = \"1M\"\nread-only = true", "7:13: a ram namespace can't be read-only: it would be empty for ever".into()),
        ("ram = \"1M\"\ndirect = \"on\"", "7:1: `direct` is for `file`; a ram namespace has no such thing: remove it".into()),
        ("file = \"a.img\"\ndirect = \"yes\"", "7:10: `direct` is \"auto\", \"on\" or \"off\", not \"yes\"".into()),
        ("file = \"a.img\"\nincoming = true", "7:12: `incoming` is for a `file` of a vhost-user device, whose image another server still has: remove it".into()),
        ("file = \"c.img\"", "6:8: c.img: no such file; create it with `truncate -s 1G c.img`".into()),
        ("qcow2 = \"c.qcow2\"", "6:9: c.qcow2: no such file; create it with `qemu-img create -f qcow2 c.qcow2 1G`".into()),
        ("qcow2 = \"a.img\"", "6:9: a.img isn't a qcow2 image; a raw image is named with `file`".into()),
        ("file = \"dir\"", "6:8: dir is neither a file nor a block device".into()),
        ("file = \"empty.img\"", "6:8: empty.img is empty; give it a size with `truncate -s 1G empty.img`".into()),
        ("file = \"small.img\"\nblock-size = 4096", "6:8: small.img has 512 bytes, less than a block of 4096".into()),
    ] {
        assert_eq!(folder.mistakes(&device("", namespace)), [told], "{namespace}");
    }
    let text = "[[device]]\nsocket = \"s\"\nprotocol = \"vfio-user\"\n";
    let told = format!("1:1: this device has no storage: add a table [[device.namespace]] and {MEDIUM}");
    assert_eq!(folder.mistakes(text), [told]);
    let text = format!("{text}[device.namespace]\nram = 512");
    assert_eq!(
        folder.mistakes(&text),
        ["4:1: write this as a table of its own that begins with [[device.namespace]]"]
    );
}

#[test]
fn what_only_the_machine_can_tell_is_told_with_its_place() {
    let folder = Folder::new();
    let ram = "ram = \"1M\"";
    let last = cpus().last().copied().unwrap();
    let told = folder.mistakes(&device(&format!("cpus = [{}]", last + 4000), ram));
    let wanted = format!("4:8: this process can't run on processor {}; it may use ", last + 4000);
    assert!(told.len() == 1 && told[0].starts_with(&wanted), "{told:?}");
    let told = folder.mistakes(&device("", "ram = \"1000T\""));
    assert!(
        told[0].starts_with("6:7: up to here the RAM namespaces add up to 1099511627776000 bytes"),
        "{told:?}"
    );
    let socket = |path: &str| device("", ram).replace("\"s\"", &format!("\"{path}\""));
    assert_eq!(
        folder.mistakes(&socket("no/where")),
        ["2:10: there is no directory no: create it with `mkdir -p no`"]
    );
    assert_eq!(
        folder.mistakes(&socket("a.img")),
        ["2:10: a.img exists and isn't a socket: remove it or choose another path"]
    );
    let told = folder.mistakes(&socket(&"x".repeat(100)));
    assert!(told[0].starts_with("2:10: the path of this socket has "), "{told:?}");
    let virtio = socket("dir").replace("vfio", "vhost");
    assert_eq!(folder.mistakes(&virtio), ["2:10: dir is a directory: name a socket in it"]);
}

fn cpus() -> Vec<usize> {
    crate::cpus::allowed().unwrap().0
}

#[test]
fn devices_that_get_into_each_others_way_are_told() {
    let folder = Folder::new();
    let pair = |first: &str, second: &str| {
        format!(
            "[[device]]\nprotocol = \"vfio-user\"\n{first}\n\n[[device]]\nprotocol = \"vfio-user\"\n{second}\n"
        )
    };
    let ram = "namespace = [{ ram = \"1M\" }]";
    for (first, second, told) in [
        (
            format!("socket = \"s\"\n{ram}"),
            format!("socket = \"./dir/../s\"\n{ram}"),
            vec!["8:10: s is used by the device of line 3 already: choose another path"],
        ),
        (
            format!("socket = \"s\"\n{ram}"),
            format!("socket = \"s.ctl\"\n{ram}"),
            vec!["8:10: s.ctl is used by the device of line 3 already: choose another path"],
        ),
        (
            format!("fd = 5\n{ram}"),
            format!("fd = 5\n{ram}"),
            vec!["8:6: descriptor 5 is the device's of line 3 already"],
        ),
        (
            "socket = \"s\"\nnamespace = [{ file = \"a.img\" }]".into(),
            "socket = \"t\"\nnamespace = [{ file = \"link.img\", read-only = true }]".into(),
            vec![
                "9:23: link.img is named in line 4 already; two writers, or a writer and a reader, would destroy it: \
                 name another image, or set read-only = true in both places",
            ],
        ),
        (
            format!("socket = \"s\"\n{ram}\nstate = \"x\""),
            format!("socket = \"t\"\n{ram}\nstate = \"x\""),
            vec!["11:9: x is the state file of line 5 already: choose another"],
        ),
    ] {
        assert_eq!(folder.mistakes(&pair(&first, &second)), told);
    }
    // One image, read by both, is fine.
    let read = "namespace = [{ file = \"a.img\", read-only = true }]";
    let text = pair(&format!("socket = \"s\"\n{read}"), &format!("socket = \"t\"\n{read}"));
    assert_eq!(folder.read(&text).unwrap().len(), 2);
}

#[test]
fn several_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let folder = Folder::new();
    let text = "[[device]]\nsocket = 5\nprotocol = \"vfio-user\"\nquues = 4\n\n[[device.namespace]]\nram = \"x\"\n\n\
                [[device]]\nsocket = \"s\"\nprotocol = \"vhost-user\"\n[[device.namespace]]\nfile = \"c.img\"\n";
    let lines: Vec<String> =
        folder.mistakes(text).iter().map(|told| told.split(": ").next().unwrap().to_owned()).collect();
    assert_eq!(lines, ["2:10", "4:1", "7:7", "13:8"]);
    let path = folder.0.path().join("devices.toml").display().to_string();
    let whole = folder.read(text).unwrap_err().to_string();
    assert!(whole.starts_with(&format!("{path} has 4 mistakes:\n  {path}:2:10: `socket` takes")), "{whole}");
    let one = folder.read("device = 1").unwrap_err().to_string();
    assert_eq!(one, format!("{path}:1:10: write this as a table of its own that begins with [[device]]"));
}

#[test]
fn what_is_no_text_is_told() {
    let folder = Folder::new();
    let path = folder.0.path().join("devices.toml");
    let told = DevicesFile::read(&path).unwrap_err().to_string();
    assert_eq!(told, format!("{}: no such file; name the file that describes the devices", path.display()));
    std::fs::write(&path, b"\xff\xfe").unwrap();
    let told = DevicesFile::read(&path).unwrap_err().to_string();
    assert!(told.contains("not a text in UTF-8"), "{told}");
}
